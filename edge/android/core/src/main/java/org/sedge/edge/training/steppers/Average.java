package org.sedge.edge.training.steppers;

/**
 * The mean of the models after each of the last training steps (spec/extensions.md, X23). The device evaluates, keeps
 * and predicts with the mean, but sends the last model.
 *
 * <p>Sources: Polyak and Juditsky 1992; Izmailov et al. 2018, Averaging weights leads to wider optima.
 */
public final class Average {
    private Average() {}

    /**
     * Adds the model theta (n,) after step {@code step}, counted from 0, to the mean (n,), which covers the last
     * {@code share} of all steps.
     */
    public static void add(float[] mean, float[] theta, double share, long step, long steps) {
        long number = step + 1 - (steps - Math.max(1, (long) (share * steps)));
        float weight = (float) (1.0 / number);
        for (int i = 0; i < mean.length && number > 0; i++) {
            mean[i] += (theta[i] - mean[i]) * weight;
        }
    }
}
