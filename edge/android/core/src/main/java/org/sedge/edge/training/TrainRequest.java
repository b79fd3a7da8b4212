package org.sedge.edge.training;

import org.sedge.edge.wire.Messages.Training;

/** One training: from theta (n,), which is not modified, with the steps that {@code training} asks for. */
public final class TrainRequest {
    public final float[] theta;
    public final Training training;
    public final long seed;
    /** Where a prox pulls, (n,). */
    public final float[] anchor;
    /** Added to the gradient of every step, (n,), except in statistics, which have none; null: nothing is. */
    public final float[] correction;
    /** What the optimizer begins with; null: nothing. */
    public final Moments moments;

    TrainRequest(float[] theta, Training training, long seed, float[] anchor, float[] correction, Moments moments) {
        this.theta = theta;
        this.training = training;
        this.seed = seed;
        this.anchor = anchor;
        this.correction = correction;
        this.moments = moments;
    }
}
