package org.sedge.edge.training;

import java.util.List;

/** The state of a stopped training: its number of steps, and the losses of its unfinished epoch. */
public final class TrainingState {
    public final long steps;
    final List<Double> losses;
    /** The model (n,) and its optimizer's state. */
    public final List<float[]> vectors;
    /** The mean (n,) of the models so far, if the training averages; otherwise null. */
    final float[] mean;

    TrainingState(long steps, List<Double> losses, List<float[]> vectors, float[] mean) {
        this.steps = steps;
        this.losses = losses;
        this.vectors = vectors;
        this.mean = mean;
    }
}
