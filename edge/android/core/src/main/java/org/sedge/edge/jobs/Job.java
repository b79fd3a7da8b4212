package org.sedge.edge.jobs;

import org.sedge.edge.wire.Struct;

/** An order whose blobs are all here, and what the device has kept of its run. */
public final class Job {
    public final Struct order;
    /** Names of blobs; of the schema {@link Kept}. */
    public final Struct kept;
    /** Where an earlier attempt was stopped, a blob; null: nowhere. */
    public final byte[] checkpoint;
    /** How many have come over HTTP since the device's last report. */
    public final long httpBytes;

    public Job(Struct order, Struct kept, byte[] checkpoint, long httpBytes) {
        this.order = order;
        this.kept = kept;
        this.checkpoint = checkpoint;
        this.httpBytes = httpBytes;
    }
}
