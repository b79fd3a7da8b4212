package org.sedge.edge.training;

import org.sedge.edge.wire.Messages.Training;

import java.util.Map;

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
    /** What a guided loss takes, by the names of its program's inputs; null: the loss is the bundle's own. */
    public final Map<String, float[]> guidance;

    TrainRequest(float[] theta, Training training, long seed, float[] anchor, float[] correction, Moments moments,
            Map<String, float[]> guidance) {
        this.theta = theta;
        this.training = training;
        this.seed = seed;
        this.anchor = anchor;
        this.correction = correction;
        this.moments = moments;
        this.guidance = guidance;
    }
}
