package org.sedge.edge.jobs;

import org.sedge.edge.wire.Messages.Order;

/** An order whose blobs are all here, and what the device has kept of its run. */
public final class Job {
    public final Order order;
    /** Names of blobs; of the schema {@link Kept}. */
    public final Kept kept;
    /** Where an earlier attempt was stopped, a blob; null: nowhere. */
    public final byte[] checkpoint;
    /** How many have come over HTTP since the device's last report. */
    public final long httpBytes;

    public Job(Order order, Kept kept, byte[] checkpoint, long httpBytes) {
        this.order = order;
        this.kept = kept;
        this.checkpoint = checkpoint;
        this.httpBytes = httpBytes;
    }
}
