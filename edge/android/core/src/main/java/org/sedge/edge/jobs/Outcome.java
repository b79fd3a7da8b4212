package org.sedge.edge.jobs;

import org.sedge.edge.wire.Messages.Report;
import org.sedge.edge.wire.Metric;

/** A job's results: its update, a blob, and the state that the device keeps from now on. */
public final class Outcome {
    public final byte[] update;
    /** The update's report, for people. */
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
