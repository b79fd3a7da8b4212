package org.sedge.edge.jobs;

import org.sedge.edge.wire.Metric;
import org.sedge.edge.wire.Struct;

/** What a job leaves: its update, a blob, and what the device keeps of the run from now on. */
public final class Outcome {
    public final byte[] update;
    /** The head of the update, for a person. */
    public final Struct report;
    public final Metric metric;
    /** Names of blobs; of the schema {@link Kept}. */
    public final Struct kept;

    public Outcome(byte[] update, Struct report, Metric metric, Struct kept) {
        this.update = update;
        this.report = report;
        this.metric = metric;
        this.kept = kept;
    }
}
