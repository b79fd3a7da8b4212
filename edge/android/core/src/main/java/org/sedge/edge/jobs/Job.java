package org.sedge.edge.jobs;

import org.sedge.edge.wire.Messages.Order;

/** An order whose blobs are all on disk, and the state that the device has kept from the order's run. */
public final class Job {
    public final Order order;
    /** The state kept from the run: the names of its blobs. */
    public final Kept kept;
    /** The name of the blob with the state of an earlier, stopped attempt; null if there is none. */
    public final byte[] checkpoint;
    /** The number of bytes received over HTTP since the device's last report. */
    public final long httpBytes;

    public Job(Order order, Kept kept, byte[] checkpoint, long httpBytes) {
        this.order = order;
        this.kept = kept;
        this.checkpoint = checkpoint;
        this.httpBytes = httpBytes;
    }
}
