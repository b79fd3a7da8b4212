package org.sedge.edge.training;

/** A trained model: theta (n,), the mean loss per example over the last epoch, the number of steps. */
public final class Trained {
    final float[] theta;
    final double loss;
    final long steps;
    /** The optimizer's state, where the training keeps it; otherwise null. */
    final Moments moments;
    /** The mean (n,) of the last steps' models, where the training takes one; otherwise null. */
    private final float[] mean;

    public Trained(float[] theta, double loss, long steps, Moments moments, float[] mean) {
        this.theta = theta;
        this.loss = loss;
        this.steps = steps;
        this.moments = moments;
        this.mean = mean;
    }

    /** What the device predicts with, (n,). */
    float[] model() {
        return mean == null ? theta : mean;
    }
}
