package org.sedge.edge.training;

/**
 * The result of a training phase: the model theta (n,), the mean loss per example over the last epoch, and the number
 * of steps.
 */
public final class Trained {
    final float[] theta;
    final double loss;
    final long steps;
    /** The optimizer's final state if it is kept for the next round, otherwise null. */
    final Moments moments;
    /** The mean (n,) of the models after each of the last steps if the training averages them, otherwise null. */
    private final float[] mean;

    public Trained(float[] theta, double loss, long steps, Moments moments, float[] mean) {
        this.theta = theta;
        this.loss = loss;
        this.steps = steps;
        this.moments = moments;
        this.mean = mean;
    }

    /** Returns the model (n,) that the device predicts with. */
    float[] model() {
        return mean == null ? theta : mean;
    }
}
