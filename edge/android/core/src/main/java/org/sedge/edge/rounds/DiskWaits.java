package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.wire.Backoff;

import java.util.logging.Level;

/** When to retry after the disk has refused: for all writes, and for jobs, whose work is expensive. */
final class DiskWaits {
    static final double RETRY_S = 30;
    private static final double MAX_JOB_BACKOFF_S = 1800;

    private final Effects effects;
    private double diskAt = Double.NaN;
    private double jobAt = Double.NaN;
    private double jobBackoffS;
    private String why = "";

    DiskWaits(Effects effects) {
        this.effects = effects;
    }

    /** When the wait ends, or an earlier time at which there is something else to do; NaN: neither. */
    double timer(double otherwise) {
        return Double.isNaN(diskAt) ? Backoff.earlier(otherwise, jobAt) : diskAt;
    }

    /** Whether to leave the disk alone for now. */
    boolean disk(double now) {
        return now < diskAt;
    }

    boolean job(double now) {
        return now < jobAt;
    }

    /** Whether the disk has refused and has not accepted anything since. */
    boolean untried() {
        return !Double.isNaN(diskAt);
    }

    /** The disk's error; empty once it accepts writes again, as large as a job's if those were refused. */
    String why() {
        return why;
    }

    /** The disk accepts writes again, but perhaps not yet one as large as a waiting job needs. */
    void works(boolean hasJobs) {
        diskAt = Double.NaN;
        if (!hasJobs) {
            jobBackoffS = 0;
        }
        if (jobBackoffS == 0) {
            why = "";
        }
    }

    /** A job may be tried at once: there may be room for it now. */
    void jobTried() {
        jobAt = Double.NaN;
    }

    void jobBegins() {
        why = "";
    }

    void jobDone() {
        jobBackoffS = 0;
        why = "";
    }

    /** The disk refused something. */
    void begin(StorageError error, double now) {
        diskAt = now + RETRY_S;
        why = String.valueOf(error.getMessage());
        effects.note(Level.SEVERE, error.getMessage());
    }

    /** The disk refused a job's input or outcome: the work was wasted, so each retry waits twice as long. */
    void beginJob(StorageError error, double now) {
        jobBackoffS = Math.min(Math.max(RETRY_S, 2 * jobBackoffS), MAX_JOB_BACKOFF_S);
        jobAt = now + jobBackoffS;
        begin(error, now);
    }
}
