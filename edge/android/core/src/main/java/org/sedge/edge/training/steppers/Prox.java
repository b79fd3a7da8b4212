package org.sedge.edge.training.steppers;

/**
 * The term that FedProx adds: the gradient of mu / 2 |theta - anchor|^2, which pulls every step towards the anchor.
 *
 * <p>Source: Li et al. 2020, Federated Optimization in Heterogeneous Networks, equation 2.
 */
final class Prox implements Term {
    private final float mu;
    private final float[] anchor;

    Prox(double mu, float[] anchor) {
        this.mu = (float) mu;
        this.anchor = anchor;
    }

    @Override
    public void add(float[] gradient, float[] theta) {
        for (int i = 0; i < gradient.length; i++) {
            gradient[i] += mu * (theta[i] - anchor[i]);
        }
    }
}
