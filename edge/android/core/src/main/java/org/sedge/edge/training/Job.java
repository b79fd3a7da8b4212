package org.sedge.edge.training;

import org.sedge.edge.wire.Struct;

/** An order whose blobs are all here, and what the device has kept of its run. */
public final class Job {
    public final Struct order;
    /** The device's last trained model of the run, a blob; null: none. */
    public final byte[] model;
    /** What its updates have left out so far, a blob; null: nothing. */
    public final byte[] residual;
    /** Where an earlier attempt was stopped, a blob; null: nowhere. */
    public final byte[] checkpoint;

    public Job(Struct order, byte[] model, byte[] residual, byte[] checkpoint) {
        this.order = order;
        this.model = model;
        this.residual = residual;
        this.checkpoint = checkpoint;
    }
}
