package org.sedge.edge.wire;

/**
 * Accepts each control frame of one sender only once. Frames are identified by start count and number (WIRE.md, 3.6).
 */
public final class ReplayWindow {
    private static final int WIDTH = 64;

    private long incarnation;
    private long top;
    private long seen;

    /** @param incarnation the newest start count received before */
    public ReplayWindow(long incarnation) {
        this.incarnation = incarnation;
    }

    public long incarnation() {
        return incarnation;
    }

    /** Returns the highest frame number received since the sender's current start. */
    public long top() {
        return top;
    }

    /** Restarts the window with this frame, whatever its start count. */
    void restart(long frameIncarnation, long seq) {
        incarnation = frameIncarnation;
        top = seq;
        seen = 1;
    }

    /** Returns true if the frame is new, and marks it as received. */
    public boolean accept(long frameIncarnation, long seq) {
        if (frameIncarnation < incarnation) {
            return false;
        }
        if (frameIncarnation > incarnation) {
            incarnation = frameIncarnation;
            top = 0;
            seen = 0;
        }
        long ahead = seq - top;
        if (ahead > 0) {
            seen = ahead < WIDTH ? seen << ahead | 1 : 1;
            top = seq;
            return true;
        }
        if (-ahead >= WIDTH || (seen >>> -ahead & 1) == 1) {
            return false;
        }
        seen |= 1L << -ahead;
        return true;
    }
}
