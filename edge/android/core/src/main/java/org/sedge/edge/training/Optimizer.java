package org.sedge.edge.training;

import org.sedge.edge.wire.Messages.Training;

import java.util.List;

/**
 * Updates a model from a gradient with SGD or Adam. The arithmetic is binary32, operation by operation as in
 * spec/training.md (T5) and spec/extensions.md (X13). The state is 0 at the beginning of every training phase.
 */
public final class Optimizer {
    /** torch.nn.utils.clip_grad_norm_ adds this number to the norm. */
    private static final double CLIP_EPSILON = 1e-6;

    /** The optimizer's state, (n,) each: SGD's velocity, or Adam's mean and mean square of the gradient. */
    public final float[][] vectors;
    private long steps;
    private final String name;
    private final boolean nesterov;
    private final double momentum;
    private final double beta1;
    private final double beta2;
    private final double epsilon;
    private final double decay;
    private final double clipNorm;

    public Optimizer(Training training, int size) {
        name = training.optimizer;
        nesterov = training.nesterov;
        momentum = training.momentum;
        beta1 = training.beta1;
        beta2 = training.beta2;
        epsilon = training.epsilon;
        decay = training.weightDecay;
        clipNorm = training.clipNorm;
        vectors = new float[name.equals("sgd") ? 1 : 2][size];
    }

    /**
     * Returns the learning rate of a step, counted from 0, in a training phase of {@code steps} steps
     * (spec/extensions.md, X18).
     */
    public static double rate(Training training, long step, long steps) {
        long warmup = training.warmupSteps;
        double warmth = warmup > 0 ? Math.min((step + 1) / (double) warmup, 1) : 1;
        double end = training.endFactor;
        return training.learningRate * warmth * (1 + (end - 1) * step / steps);
    }

    /** Returns the number of steps taken so far. */
    public long steps() {
        return steps;
    }

    /**
     * Restores the state after {@code made} steps.
     *
     * @param saved the {@link #vectors} at that time
     */
    public void resume(long made, List<float[]> saved) {
        steps = made;
        for (int i = 0; i < vectors.length; i++) {
            System.arraycopy(saved.get(i), 0, vectors[i], 0, vectors[i].length);
        }
    }

    /** Updates theta (n,) in place with a gradient (n,). The gradient is overwritten. */
    public void step(float[] theta, float[] gradient, double rate) {
        steps++;
        if (clipNorm > 0) {
            clip(gradient);
        }
        boolean decoupled = name.equals("adamw");
        float shrink = (float) (1 - rate * decay);
        for (int i = 0; decay > 0 && i < theta.length; i++) {
            if (decoupled) {
                theta[i] *= shrink;
            } else {
                gradient[i] += (float) decay * theta[i];
            }
        }
        if (name.equals("sgd")) {
            sgd(theta, gradient, (float) rate);
        } else {
            adam(theta, gradient, rate);
        }
    }

    private void clip(float[] gradient) {
        double squares = 0;
        for (float g : gradient) {
            squares += g * g;
        }
        float factor = (float) Math.min(clipNorm / (Math.sqrt(squares) + CLIP_EPSILON), 1);
        for (int i = 0; i < gradient.length; i++) {
            gradient[i] *= factor;
        }
    }

    private void sgd(float[] theta, float[] gradient, float lr) {
        float kept = (float) momentum;
        float[] velocity = vectors[0];
        for (int i = 0; i < theta.length; i++) {
            velocity[i] = velocity[i] * kept + gradient[i];
            theta[i] -= nesterov ? (gradient[i] + kept * velocity[i]) * lr : velocity[i] * lr;
        }
    }

    private void adam(float[] theta, float[] gradient, double rate) {
        float[] mean = vectors[0];
        float[] square = vectors[1];
        float toMean = (float) (1 - beta1);
        float kept = (float) beta2;
        float toSquare = (float) (1 - beta2);
        float scale = (float) Math.sqrt(1 - Math.pow(beta2, steps));
        float lr = (float) (rate / (1 - Math.pow(beta1, steps)));
        float least = (float) epsilon;
        for (int i = 0; i < theta.length; i++) {
            float g = gradient[i];
            mean[i] += toMean * (g - mean[i]);
            square[i] = square[i] * kept + g * g * toSquare;
            theta[i] -= mean[i] / ((float) Math.sqrt(square[i]) / scale + least) * lr;
        }
    }
}
