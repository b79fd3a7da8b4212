package org.sedge.edge.training;

/** What a job leaves: blobs, and the accuracies in [0, 1] before and after its training. */
public final class Outcome {
    public final byte[] update;
    /** What the device keeps of the run from now on; null: nothing. */
    public final byte[] model;
    public final byte[] residual;
    public final double before;
    public final double after;

    public Outcome(byte[] update, byte[] model, byte[] residual, double before, double after) {
        this.update = update;
        this.model = model;
        this.residual = residual;
        this.before = before;
        this.after = after;
    }
}
