package org.sedge.edge.wire;

import java.util.Random;

/** Computes waiting times in seconds: how long to wait for an answer, and the backoff of WIRE.md, section 7. */
public final class Backoff {
    public static final double SILENCE_S = 2.0;
    public static final double MAX_S = 60.0;

    private Backoff() {}

    /**
     * Returns the seconds to wait before retry {@code attempt}, counted from 0: a random share, at least a tenth, of a
     * ceiling that doubles up to {@link #MAX_S}.
     */
    public static double after(int attempt, Random random) {
        return jittered(Math.min(MAX_S, 0.5 * Math.pow(2, Math.min(attempt, 10))), random);
    }

    /** Returns a uniformly random number between a tenth of the ceiling and the ceiling. */
    public static double jittered(double ceiling, Random random) {
        return ceiling * (0.1 + 0.9 * random.nextDouble());
    }

    /** Returns the earlier of two times, where NaN means that there is none. */
    public static double earlier(double a, double b) {
        return Double.isNaN(a) ? b : Double.isNaN(b) ? a : Math.min(a, b);
    }
}
