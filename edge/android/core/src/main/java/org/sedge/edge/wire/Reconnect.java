package org.sedge.edge.wire;

import java.util.HashMap;
import java.util.Map;

/** Decides how long to wait before the next connection (WIRE.md, 1.9), and what to log about an outage. */
public final class Reconnect {
    private static final double FIRST_S = 1;
    private static final double SOON_S = 5;
    /** A wait may extend an outage by 1/36 of its length, or by more in a large fleet or after a short outage. */
    private static final double OUTAGE_PART = 36;
    /**
     * Roughly how many of the fleet's devices reconnect per second after a short outage. The next constant is for
     * longer outages.
     */
    private static final double FIRST_DEVICES_A_SECOND = 100;
    private static final double DEVICES_A_SECOND = 10;
    /** The fleet size to assume if the coordinator has not announced it. */
    private static final long UNKNOWN_DEVICES = 100;
    private static final double LOG_EVERY_S = 3600;

    /**
     * How a connection or an attempt ended, with the longest wait that follows. Attempts that cost more have longer
     * waits.
     */
    public enum Ended {
        /** The connection had delivered a message, or we closed it because it was silent. */
        HEARD(30),
        /** The network replied that nothing is listening at the address. */
        REFUSED(30),
        /** No CONNACK arrived, for some other reason. */
        UNANSWERED(60),
        /** The broker refused us, or accepted us but sent no message. */
        TURNED_AWAY(300);

        private final double ceiling;

        Ended(double ceiling) {
            this.ceiling = ceiling;
        }
    }

    private int failures;
    private double since = Double.NaN;
    private final Map<String, Double> logged = new HashMap<>();

    /**
     * Returns the longest wait before the next connection.
     *
     * @param ended how the last connection or attempt ended
     * @param devices the number of devices in the fleet; 0 if unknown
     */
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

    /**
     * Returns true if this reason should be logged, because it was not logged in this outage or within the last hour.
     */
    public boolean isNews(String reason, double now) {
        Double before = logged.get(reason);
        if (before != null && now < before + LOG_EVERY_S) {
            return false;
        }
        logged.put(reason, now);
        return true;
    }
}
