package org.sedge.edge.training;

/** A trained model: theta (n,), the mean loss per example over the last epoch, the number of steps. */
public final class Trained {
    final float[] theta;
    final double loss;
    final long steps;
    /** The optimizer's state, if the training keeps it; otherwise null. */
    final Moments moments;
    /** The mean (n,) of the last steps' models, if the training averages; otherwise null. */
    private final float[] mean;

    public Trained(float[] theta, double loss, long steps, Moments moments, float[] mean) {
        this.theta = theta;
        this.loss = loss;
        this.steps = steps;
        this.moments = moments;
        this.mean = mean;
    }

    /** The model (n,) that the device predicts with. */
    float[] model() {
        return mean == null ? theta : mean;
    }
}
