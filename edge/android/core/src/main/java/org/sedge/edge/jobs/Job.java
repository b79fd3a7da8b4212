package org.sedge.edge.jobs;

import org.sedge.edge.wire.Messages.Order;

/** An order whose blobs are all here, and the state kept from its run. */
public final class Job {
    public final Order order;
    /** Names of blobs; of the schema {@link Kept}. */
    public final Kept kept;
    /** The blob with the state of an earlier, stopped attempt; null: there is none. */
    public final byte[] checkpoint;
    /** Bytes received over HTTP since the device's last report. */
    public final long httpBytes;

    public Job(Order order, Kept kept, byte[] checkpoint, long httpBytes) {
        this.order = order;
        this.kept = kept;
        this.checkpoint = checkpoint;
        this.httpBytes = httpBytes;
    }
}
