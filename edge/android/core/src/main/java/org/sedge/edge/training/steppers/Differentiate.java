package org.sedge.edge.training.steppers;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.training.Batches;

/** The part of a backend that differentiates a batch's mean loss. */
public interface Differentiate {
    /** Feeds the batch of a step, from 0, for the gradients until the next batch. */
    void feed(long step, Batches.Batch batch);

    /** The gradient at theta (n,), with loss and statistics. */
    Differentiated at(float[] theta) throws CodecError;

    /** A batch's gradient (n,), which the caller may overwrite, its mean loss, and the new statistics (s,). */
    final class Differentiated {
        final float[] gradient;
        final double loss;
        /** The new values of the layout's statistics, concatenated; null: there are none. */
        final float[] statistics;

        public Differentiated(float[] gradient, double loss, float[] statistics) {
            this.gradient = gradient;
            this.loss = loss;
            this.statistics = statistics;
        }
    }
}
