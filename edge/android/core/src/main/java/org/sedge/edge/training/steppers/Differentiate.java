package org.sedge.edge.training.steppers;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.training.Batches;

/** A backend that differentiates a batch's mean loss. */
public interface Differentiate {
    /** Takes the batch of a step, from 0; valid until the next. */
    void feed(long step, Batches.Batch batch);

    /** The gradient at theta (n,), and what comes with it. */
    Differentiated at(float[] theta) throws CodecError;

    /** A batch's gradient (n,), which the caller may overwrite, its mean loss, and the statistics (s,) after it. */
    final class Differentiated {
        final float[] gradient;
        final double loss;
        /** The layout's, one after the other; null: there are none. */
        final float[] statistics;

        public Differentiated(float[] gradient, double loss, float[] statistics) {
            this.gradient = gradient;
            this.loss = loss;
            this.statistics = statistics;
        }
    }
}
