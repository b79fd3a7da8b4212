package org.sedge.edge.training.steppers;

/**
 * The term that SCAFFOLD adds to correct the drift of a device's gradients: c - c_i.
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
