package org.sedge.edge.training;

import org.sedge.edge.wire.Messages.Training;

import java.util.Map;

/** One training: from theta (n,), which is not modified, with the steps that {@code training} specifies. */
public final class TrainRequest {
    public final float[] theta;
    public final Training training;
    public final long seed;
    /** The model (n,) that prox pulls towards. */
    public final float[] anchor;
    /** A vector (n,) added to the gradient of every step, except in statistics, which have none; null: none. */
    public final float[] correction;
    /** The optimizer's initial state; null: zeros. */
    public final Moments moments;
    /** The inputs of a guided loss, by the names of its program's inputs; null: the bundle's own loss. */
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
