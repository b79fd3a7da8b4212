package org.sedge.edge.training.steppers;

/** What a method adds to every gradient. */
interface Term {
    /** Adds to a gradient (n,) at theta (n,), in place. */
    void add(float[] gradient, float[] theta);
}
