package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.FrameError;

import java.util.BitSet;
import java.util.Random;

/**
 * The receiving side of a download. It requests missing chunks, and repeats the request when none arrive for a while
 * (WIRE.md, 8.3).
 */
public final class Fetch {
    public final Manifest manifest;
    /** The chunks that are on disk. */
    public final BitSet have;
    private final Random random;
    private BitSet asked = new BitSet();
    private int attempt;
    private double due = Double.NaN;
    private boolean heard;
    private double unansweredSince = Double.NaN; // the time of the last request if no chunk has arrived since
    private double waitingSince = Double.NaN;
    private double patience = Backoff.SILENCE_S;

    public Fetch(Manifest manifest, BitSet have, Random random) {
        this.manifest = manifest;
        this.have = have;
        this.random = random;
    }

    /** Returns true if every chunk is present. */
    public boolean complete() {
        return have.cardinality() == manifest.count;
    }

    /** Call this when the link has been established. The missing chunks are requested at once. */
    public void connected(double now) {
        attempt = 0;
        due = now;
        asked.clear();
        heard = false;
        unansweredSince = Double.NaN;
        waitingSince = Double.NaN;
        patience = Backoff.SILENCE_S;
    }

    /**
     * Call this when the sender is known to be online. A request that it has not answered in time is repeated at once.
     */
    public void woken(double now) {
        if (Double.isNaN(due) || Double.isNaN(unansweredSince)) {
            return;
        }
        attempt = 0;
        double again = unansweredSince + patience;
        if (now >= again) { // the sender was away, so this wait says nothing about the speed of the link
            waitingSince = Double.NaN;
        }
        due = Math.min(due, Math.max(now, again));
    }

    /** Call this when the link has been lost. */
    public void disconnected() {
        due = Double.NaN;
    }

    /**
     * Checks a chunk. Returns true if it is valid and new.
     *
     * @throws FrameError if it is invalid; the state is then unchanged
     */
    public boolean chunk(long index, byte[] data, double now) throws FrameError {
        manifest.check(index, data);
        boolean fresh = !have.get((int) index);
        have.set((int) index);
        if (!Double.isNaN(due)) {
            double took = Double.isNaN(waitingSince) ? 0 : now - waitingSince;
            patience = Math.min(Backoff.MAX_S, Math.max(Backoff.SILENCE_S, Math.max(4 * took, patience / 2)));
            waitingSince = now;
            unansweredSince = Double.NaN;
            heard = true;
            attempt = 0;
            BitSet left = (BitSet) asked.clone();
            left.andNot(have);
            due = !asked.isEmpty() && left.isEmpty() ? now : now + patience;
        }
        return fresh;
    }

    /** Returns the chunks to request if a request is due, otherwise null. */
    public BitSet poll(double now) {
        if (!(now >= due) || complete()) {
            return null;
        }
        asked = (BitSet) have.clone();
        asked.flip(0, manifest.count);
        if (!heard) {
            asked.clear(asked.nextSetBit(0) + 1, manifest.count);
        }
        if (Double.isNaN(waitingSince)) {
            waitingSince = now;
        }
        unansweredSince = now;
        due = now + patience + Backoff.after(attempt, random);
        attempt++;
        return asked;
    }

    /** Returns the time at which {@link #poll} is next due, or NaN if nothing is due until the next event. */
    public double timer() {
        return complete() ? Double.NaN : due;
    }
}
