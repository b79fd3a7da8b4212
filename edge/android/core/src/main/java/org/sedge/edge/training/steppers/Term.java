package org.sedge.edge.training.steppers;

/** A term that a training method adds to every gradient. */
interface Term {
    /** Adds the term at theta (n,) to a gradient (n,), in place. */
    void add(float[] gradient, float[] theta);
}
