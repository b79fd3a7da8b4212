package org.sedge.edge.training.steppers;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.training.Batches;

/** The part of a backend that computes the gradient of a batch's mean loss. */
public interface Differentiate {
    /** Sets the batch of a step, counted from 0. Gradients are computed on it until the next call. */
    void feed(long step, Batches.Batch batch);

    /** Computes gradient, loss and statistics at theta (n,). */
    Differentiated at(float[] theta) throws CodecError;

    /** A batch's gradient (n,), which the caller may overwrite, its mean loss, and the new statistics. */
    final class Differentiated {
        final float[] gradient;
        final double loss;
        /** The new values (s,) of the layout's statistics, concatenated; null if there are none. */
        final float[] statistics;

        public Differentiated(float[] gradient, double loss, float[] statistics) {
            this.gradient = gradient;
            this.loss = loss;
            this.statistics = statistics;
        }
    }
}
