package org.sedge.edge.jobs;

import org.sedge.edge.wire.Messages.Report;
import org.sedge.edge.wire.Metric;

/** What a job leaves: its update, a blob, and what the device keeps of the run from now on. */
public final class Outcome {
    public final byte[] update;
    /** The head of the update, for a person. */
    public final Report report;
    public final Metric metric;
    /** Names of blobs; of the schema {@link Kept}. */
    public final Kept kept;

    public Outcome(byte[] update, Report report, Metric metric, Kept kept) {
        this.update = update;
        this.report = report;
        this.metric = metric;
        this.kept = kept;
    }
}
