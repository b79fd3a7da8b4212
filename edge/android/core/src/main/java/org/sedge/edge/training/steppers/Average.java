package org.sedge.edge.training.steppers;

/**
 * The mean of the last models that a training passes through (spec/extensions.md, X23): the device evaluates, keeps and
 * predicts with it, and sends the last model.
 *
 * <p>Sources: Polyak and Juditsky 1992; Izmailov et al. 2018, Averaging weights leads to wider optima.
 */
public final class Average {
    private Average() {}

    /** Adds theta (n,) after step {@code step}, from 0, to the mean (n,) of the last {@code share} of all steps. */
    public static void add(float[] mean, float[] theta, double share, long step, long steps) {
        long number = step + 1 - (steps - Math.max(1, (long) (share * steps)));
        float weight = (float) (1.0 / number);
        for (int i = 0; i < mean.length && number > 0; i++) {
            mean[i] += (theta[i] - mean[i]) * weight;
        }
    }
}
