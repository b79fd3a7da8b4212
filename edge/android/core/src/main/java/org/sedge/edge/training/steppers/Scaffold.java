package org.sedge.edge.training.steppers;

/**
 * SCAFFOLD: corrects the drift of a device's gradients by adding c - c_i to each of them.
 *
 * <p>Source: Karimireddy et al. 2020, SCAFFOLD, algorithm 1 line 10: g(y) - c_i + c.
 */
final class Scaffold implements Term {
    private final float[] correction;

    Scaffold(float[] correction) {
        this.correction = correction;
    }

    @Override
    public void add(float[] gradient, float[] theta) {
        for (int i = 0; i < gradient.length; i++) {
            gradient[i] += correction[i];
        }
    }
}
