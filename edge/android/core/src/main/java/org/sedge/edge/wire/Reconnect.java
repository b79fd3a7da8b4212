package org.sedge.edge.wire;

import java.util.HashMap;
import java.util.Map;

/** Decides how long a link waits before its next connection (WIRE.md, 1.9), and what it logs about an outage. */
public final class Reconnect {
    private static final double FIRST_S = 1;
    private static final double SOON_S = 5;
    /** The wait extends an outage of t seconds by at most t / 36 seconds for a device. */
    private static final double OUTAGE_PART = 36;
    /** Roughly the number of devices that reconnect per second, after a short and after a longer outage. */
    private static final double FIRST_DEVICES_A_SECOND = 100;
    private static final double DEVICES_A_SECOND = 10;
    /** The assumed fleet size if the coordinator has not reported it. */
    private static final long UNKNOWN_DEVICES = 100;
    private static final double LOG_EVERY_S = 3600;

    /** How a connection or an attempt ended, and the longest wait after it; costlier endings have longer waits. */
    public enum Ended {
        /** It had brought a message, or we closed it because of its silence. */
        HEARD(30),
        /** The network answered that nothing listens there. */
        REFUSED(30),
        /** No CONNACK came, for any other reason. */
        UNANSWERED(60),
        /** The broker refused us, or accepted us and sent no message. */
        TURNED_AWAY(300);

        private final double ceiling;

        Ended(double ceiling) {
            this.ceiling = ceiling;
        }
    }

    private int failures;
    private double since = Double.NaN;
    private final Map<String, Double> logged = new HashMap<>();

    /** The longest wait before the next connection, after one has ended, in a fleet of this size (0: unknown). */
    public double longest(Ended ended, double now, long devices) {
        if (ended == Ended.HEARD) {
            failures = 0;
            since = now;
            logged.clear();
        } else {
            failures++;
        }
        if (Double.isNaN(since)) {
            since = now;
        }
        double doublings = Math.pow(2, Math.min(failures, 9));
        if (ended == Ended.TURNED_AWAY) {
            return Math.min(ended.ceiling, FIRST_S * doublings);
        }
        double fleet = devices == 0 ? UNKNOWN_DEVICES : devices;
        double first = Math.max(FIRST_S, fleet / FIRST_DEVICES_A_SECOND) * doublings;
        double soon = Math.max(SOON_S, Math.max(fleet / DEVICES_A_SECOND, (now - since) / OUTAGE_PART));
        return Math.min(ended.ceiling, Math.min(soon, first));
    }

    /** Whether to log this reason: it was not logged in this outage, or not for an hour. */
    public boolean isNews(String reason, double now) {
        Double before = logged.get(reason);
        if (before != null && now < before + LOG_EVERY_S) {
            return false;
        }
        logged.put(reason, now);
        return true;
    }
}
