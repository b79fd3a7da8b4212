package org.sedge.edge.training;

import java.util.List;

/**
 * The state of a stopped training phase: the number of steps taken, the losses of the unfinished epoch, and the
 * vectors.
 */
public final class TrainingState {
    public final long steps;
    final List<Double> losses;
    /** The model (n,) and its optimizer's state, (n,) each. */
    public final List<float[]> vectors;
    /** The mean (n,) of the models so far if the training averages them, otherwise null. */
    final float[] mean;

    TrainingState(long steps, List<Double> losses, List<float[]> vectors, float[] mean) {
        this.steps = steps;
        this.losses = losses;
        this.vectors = vectors;
        this.mean = mean;
    }
}
