package org.sedge.edge.wire;

import java.util.Random;

/** Waiting times in seconds: the silence before a repetition, and the backoff of WIRE.md, section 7. */
public final class Backoff {
    public static final double SILENCE_S = 2.0;
    public static final double MAX_S = 60.0;

    private Backoff() {}

    /** Seconds before retry {@code attempt}, from 0: full jitter below a ceiling that doubles up to a limit. */
    public static double after(int attempt, Random random) {
        return jittered(Math.min(MAX_S, 0.5 * Math.pow(2, Math.min(attempt, 10))), random);
    }

    /** Uniform between a tenth of the ceiling and the ceiling. */
    public static double jittered(double ceiling, Random random) {
        return ceiling * (0.1 + 0.9 * random.nextDouble());
    }

    /** The earlier of two times; NaN means none. */
    public static double earlier(double a, double b) {
        return Double.isNaN(a) ? b : Double.isNaN(b) ? a : Math.min(a, b);
    }
}
