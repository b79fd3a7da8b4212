package org.sedge.edge.jobs;

import org.sedge.edge.wire.Messages.Report;
import org.sedge.edge.wire.Metric;

/** The results of a job: its update, which is a blob, and the state that the device keeps from now on. */
public final class Outcome {
    public final byte[] update;
    /** The update's report. The device shows parts of it to people. */
    public final Report report;
    public final Metric metric;
    /** The state to keep for the run: the names of its blobs. */
    public final Kept kept;

    public Outcome(byte[] update, Report report, Metric metric, Kept kept) {
        this.update = update;
        this.report = report;
        this.metric = metric;
        this.kept = kept;
    }
}
