package org.sedge.edge.wire;

/** Accepts each control frame of one sender once, by start count and number (WIRE.md, 3.6). */
public final class ReplayWindow {
    private static final int WIDTH = 64;

    private long incarnation;
    private long top;
    private long seen;

    /** Takes the newest start count received before. */
    public ReplayWindow(long incarnation) {
        this.incarnation = incarnation;
    }

    public long incarnation() {
        return incarnation;
    }

    /** The highest number seen in this start. */
    public long top() {
        return top;
    }

    /** Restarts the window with this frame, whatever its start count. */
    void restart(long frameIncarnation, long seq) {
        incarnation = frameIncarnation;
        top = seq;
        seen = 1;
    }

    /** Whether the frame is new; marks it as seen. */
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
