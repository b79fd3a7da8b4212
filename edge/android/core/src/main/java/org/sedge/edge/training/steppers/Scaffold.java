package org.sedge.edge.training.steppers;

/**
 * SCAFFOLD: what a device's gradients lean by, c - c_i, is taken from each of them.
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
