package org.sedge.edge.training;

import org.sedge.edge.wire.Messages.Training;

import java.util.Map;

/**
 * A request for one training phase, which starts from theta (n,) without modifying it. {@code training} specifies the
 * steps.
 */
public final class TrainRequest {
    public final float[] theta;
    public final Training training;
    public final long seed;
    /** The model (n,) towards which the prox term pulls. */
    public final float[] anchor;
    /**
     * A vector (n,) to add to the gradient of every step, except for statistics, which have no gradient; null for none.
     */
    public final float[] correction;
    /** The optimizer's initial state; null for zeros. */
    public final Moments moments;
    /** The inputs of the guided loss, keyed by their names in its program; null to use the bundle's own loss. */
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
