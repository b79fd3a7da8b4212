package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.wire.Backoff;

import java.util.logging.Level;

/**
 * Decides when to retry after a disk write has failed. Jobs have a separate wait, because repeating their work is
 * expensive.
 */
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

    /**
     * Returns when to act next: at the end of the disk's wait or, if the disk is usable, at the earlier of
     * {@code otherwise} and the end of the jobs' wait. NaN means that there is no such time.
     */
    double timer(double otherwise) {
        return Double.isNaN(diskAt) ? Backoff.earlier(otherwise, jobAt) : diskAt;
    }

    /** Returns true while the disk should not be used. */
    boolean disk(double now) {
        return now < diskAt;
    }

    boolean job(double now) {
        return now < jobAt;
    }

    /** Returns true if a disk write has failed and none has succeeded since. */
    boolean untried() {
        return !Double.isNaN(diskAt);
    }

    /**
     * Returns the disk's last error, or "" once writes succeed again. An error in writing a job's input or outcome
     * remains until a job begins or no job is left.
     */
    String why() {
        return why;
    }

    /** Call this when a write has succeeded. A waiting job may still need more room than that write did. */
    void works(boolean hasJobs) {
        diskAt = Double.NaN;
        if (!hasJobs) {
            jobBackoffS = 0;
        }
        if (jobBackoffS == 0) {
            why = "";
        }
    }

    /** Ends the jobs' wait, because there may be room for a job now. */
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

    /** Call this when a disk write has failed. */
    void begin(StorageError error, double now) {
        diskAt = now + RETRY_S;
        why = String.valueOf(error.getMessage());
        effects.note(Level.SEVERE, error.getMessage());
    }

    /**
     * Call this when a job's input or outcome could not be written to disk. The work was wasted, so each wait is twice
     * as long as the last.
     */
    void beginJob(StorageError error, double now) {
        jobBackoffS = Math.min(Math.max(RETRY_S, 2 * jobBackoffS), MAX_JOB_BACKOFF_S);
        jobAt = now + jobBackoffS;
        begin(error, now);
    }
}
