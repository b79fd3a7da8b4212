package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.FrameError;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Random;

/** The sending side of an upload (WIRE.md, section 7). */
public final class Upload {
    /** Stands for the offer in the result of {@link #poll}, in place of a chunk number. */
    public static final int OFFER = -1;

    public final Manifest manifest;
    private final Random random;
    private final BitSet have = new BitSet();
    // pairs of a chunk and the number of the last offer sent before it
    private final List<long[]> inFlight = new ArrayList<>();
    private long number;
    private int fruitless;
    private double due = Double.NaN;
    private double unansweredSince = Double.NaN; // when the newest offer was sent, if it is unanswered
    private int attempt;
    private boolean answered = true;
    private boolean tried;
    private boolean progress;
    private int credit;
    private boolean putOff;

    public Upload(Manifest manifest, Random random) {
        this.manifest = manifest;
        this.random = random;
    }

    /** Returns the number of the newest offer. */
    public long number() {
        return number;
    }

    /** Returns true if all chunks were lost twice in a row, which means that chunks of this size do not get through. */
    public boolean wantsSmallerChunks() {
        return fruitless >= 2
                && manifest.chunkBytes > Manifest.chunkSize(manifest.size, Manifest.MIN_CHUNK_BYTES);
    }

    /** Returns true if the receiver is known to have some of the chunks. */
    public boolean begun() {
        return !have.isEmpty();
    }

    /** Returns true if the receiver's last answer was that it cannot accept the blob now. */
    public boolean putOff() {
        return putOff;
    }

    /** Returns true if the newest offer contains the whole blob, as the first offer of a small blob does. */
    public boolean inline() {
        return number == 1 && manifest.size <= Math.min(Messages.MAX_INLINE_BYTES, manifest.chunkBytes);
    }

    /** Call this when the link has been established. The blob is offered at once. */
    public void connected(double now) {
        if (progress) {
            fruitless = 0;
        } else if (tried) {
            fruitless++;
        }
        tried = false;
        progress = false;
        putOff = false;
        attempt = 0;
        credit = 0;
        due = now;
        unansweredSince = Double.NaN;
    }

    /**
     * Call this when the receiver is known to be online. An unanswered offer is then repeated as if it were the first,
     * but not before an answer is overdue, so that a working link carries nothing twice.
     */
    public void woken(double now) {
        if (!Double.isNaN(due) && !Double.isNaN(unansweredSince)) {
            attempt = 0;
            due = Math.min(due, Math.max(now, unansweredSince + Backoff.SILENCE_S));
        }
    }

    /** Call this when the link has been lost. Chunks in flight count as lost. */
    public void disconnected() {
        due = Double.NaN;
        credit = 0;
        inFlight.clear();
    }

    /**
     * Handles the receiver's report on which chunks it has.
     *
     * @param answers the number of the offer that the report answers; 0 if it is unsolicited
     */
    public void receive(long answers, byte[] bitmap, int newCredit, double now) throws FrameError {
        BitSet received = Manifest.fromBitmap(bitmap, manifest.count);
        if (Double.isNaN(due) || answers > number) { // answers an offer from before our restart
            return;
        }
        BitSet fresh = (BitSet) received.clone();
        fresh.andNot(have);
        boolean first = answers == number && !answered;
        if (!fresh.isEmpty()) {
            progress = true;
            tried = false;
            attempt = 0;
            fruitless = 0;
        } else if (first && tried) { // the answer to a later offer shows that these chunks were lost
            fruitless++;
            tried = false;
        }
        if (first) {
            answered = true;
            have.clear();
        }
        have.or(received);
        int settled = -1;
        for (int place = 0; place < inFlight.size(); place++) {
            if (received.get((int) inFlight.get(place)[0]) || inFlight.get(place)[1] < answers) {
                settled = place;
            }
        }
        inFlight.subList(0, settled + 1).clear();
        credit = newCredit;
        putOff = false;
        due = now + Backoff.SILENCE_S;
        unansweredSince = Double.NaN;
    }

    /** Call this when the receiver cannot accept the blob now. */
    public void busy(double retryS, double now) {
        if (!Double.isNaN(due)) {
            credit = 0;
            putOff = true;
            due = now + retryS;
            unansweredSince = Double.NaN;
        }
    }

    /** Returns what to send now: {@link #OFFER} or chunk numbers. */
    public List<Integer> poll(double now) {
        List<Integer> sends = new ArrayList<>();
        if (Double.isNaN(due)) {
            return sends;
        }
        if (now >= due) {
            due = now + Backoff.SILENCE_S + Backoff.after(attempt, random);
            unansweredSince = now;
            attempt++;
            number++;
            credit = 0;
            answered = false;
            sends.add(OFFER);
            return sends;
        }
        BitSet skip = (BitSet) have.clone();
        for (long[] sent : inFlight) {
            skip.set((int) sent[0]);
        }
        for (int i = skip.nextClearBit(0); i < manifest.count && inFlight.size() < credit; i = skip.nextClearBit(i + 1)) {
            inFlight.add(new long[] {i, number});
            sends.add(i);
            tried = true;
        }
        return sends;
    }

    /**
     * Returns the time at which {@link #poll} is next due, or NaN if it is not due until the link has been established.
     */
    public double timer() {
        return due;
    }
}
