package org.sedge.edge.rounds;

import org.sedge.edge.Limits;
import org.sedge.edge.rounds.State.Spent;

import java.util.Locale;

/**
 * The remaining allowance of a device's own limits; without limits, everything is allowed.
 *
 * <p>Each limit is a bucket that spending fills and that drains evenly, an hour's worth in an hour or a day's in a day.
 * A full bucket stays closed until a tenth of it has drained. Time is monotonic while the agent runs. The amounts spent
 * are committed with the rest of the state, and drain over the time from the last commit to a new start, by the device's
 * clock, but at most over a day. So neither a clock that starts in the past nor a restart gains anything.
 */
final class Budget {
    private static final double HOUR_S = 3600;
    private static final double DAY_S = 86400;
    /** The maximum number of orders in a burst, and the seconds in which this allowance recovers. */
    private static final int MOMENT = 32;
    private static final double MOMENT_S = 0.32;
    /** Accepted starts of a coordinator per hour; each costs a commit. */
    private static final int STARTS = 60;
    /** The amount that may be spent before it gets its own commit; every other commit carries it too. */
    private static final double COMMIT_BYTES = 64e6;
    private static final double COMMIT_S = 600;

    private static final class Bucket {
        double limit;
        private final double periodS;
        double spent;
        private boolean full;

        Bucket(double limit, double periodS, double spent) {
            this.limit = limit;
            this.spent = spent;
            this.periodS = periodS;
        }

        private double rate() {
            return limit / periodS;
        }

        void drain(double seconds) {
            spent = Math.max(0, spent - rate() * seconds);
        }

        boolean take() {
            if (spent + 1 > limit) {
                return false;
            }
            spent++;
            return true;
        }

        /** Seconds that a full bucket stays closed, until a tenth has drained; 0 while it is open. */
        double closedS() {
            double openAt = 0.9 * limit;
            full = spent >= limit || (full && spent > openAt);
            return full ? (spent - openAt) / rate() : 0;
        }
    }

    private final boolean limited;
    private final Bucket orders;
    private final Bucket moment = new Bucket(MOMENT, MOMENT_S, 0);
    private final Bucket starts = new Bucket(STARTS, HOUR_S, 0);
    private final Bucket bytes;
    private final Bucket training;
    private double clockS;
    private double now = Double.NaN;
    private boolean working;
    private double newBytes;
    private double newS;
    private double tellAt = Double.NEGATIVE_INFINITY;
    /** When a running job must stop; read by the job's thread. */
    private volatile double stopAt = Double.POSITIVE_INFINITY;

    /** @param clockS Unix seconds at this start, which need not be right */
    Budget(Limits limits, Spent spent, long clockS) {
        limited = limits != null;
        Limits some = limited ? limits : Limits.DEFAULT;
        orders = new Bucket(some.ordersPerHour, HOUR_S, spent.orders);
        bytes = new Bucket(some.megabytesPerDay * 1e6, DAY_S, spent.bytes);
        training = new Bucket(some.trainingHoursPerDay * HOUR_S, DAY_S, spent.seconds);
        this.clockS = clockS;
        long at = spent.at;
        drain(at == 0 ? 0 : Math.min(DAY_S, Math.max(0, clockS - at)));
    }

    /** Takes other limits, which are stricter than the device's own, or those again. */
    void tighten(Limits limits) {
        orders.limit = limits.ordersPerHour;
        bytes.limit = limits.megabytesPerDay * 1e6;
        training.limit = limits.trainingHoursPerDay * HOUR_S;
    }

    private void drain(double seconds) {
        for (Bucket bucket : new Bucket[] {orders, moment, starts, bytes, training}) {
            bucket.drain(seconds);
        }
    }

    void passed(double time) {
        double seconds = Double.isNaN(now) ? 0 : Math.max(0, time - now);
        now = time;
        clockS += seconds;
        if (working) {
            training.spent += seconds;
            newS += seconds;
        }
        drain(seconds);
        double net = 1 - training.limit / DAY_S;
        stopAt = limited && net > 0 ? now + Math.max(0, training.limit - training.spent) / net : Double.POSITIVE_INFINITY;
    }

    /** The device's Unix time, counted on from its clock at this start. */
    double clockS() {
        return clockS;
    }

    void received(int size) {
        bytes.spent += size;
        newBytes += size;
    }

    /** A job begins or ends. */
    void works(boolean begins) {
        working = begins;
    }

    /** Whether frames of another start of the coordinator are still accepted. */
    boolean start() {
        return !limited || starts.take();
    }

    /** The decision on an order: null accepts it, "" drops it, other text is the reason to decline. */
    String order() {
        if (!limited) {
            return null;
        }
        if (!moment.take()) {
            return "";
        }
        return orders.take() ? null : "the limit of orders per hour: more than " + Math.round(orders.limit)
                + " orders in an hour, expected fewer, or a higher limit";
    }

    /** Whether to log now that an order was refused: once an hour. */
    boolean tells() {
        if (now < tellAt) {
            return false;
        }
        tellAt = now + HOUR_S;
        return true;
    }

    /** Why nothing may be fetched or begun now; empty if it may. */
    String closed() {
        double bytesS = limited ? bytes.closedS() : 0;
        double trainingS = limited ? training.closedS() : 0;
        String first = bytesS > 0 ? reason("megabytes per day: no more downloads", bytesS) : "";
        String second = trainingS > 0 ? reason("training hours per day: no more training", trainingS) : "";
        return first + (first.isEmpty() || second.isEmpty() ? "" : "; ") + second;
    }

    private static String reason(String what, double seconds) {
        return String.format(Locale.ROOT, "the limit of %s for another %.1f hours", what, seconds / HOUR_S);
    }

    /** Whether the running job has used up the training time; callable from any thread. */
    boolean mustStop(double time) {
        return time >= stopAt;
    }

    /** Whether enough was spent since the last commit to deserve a separate one. */
    boolean owes() {
        return limited && (newBytes >= COMMIT_BYTES || newS >= COMMIT_S);
    }

    /** The amounts spent, to be committed together with other state. */
    Spent commit() {
        newBytes = 0;
        newS = 0;
        Spent nothing = Spent.SCHEMA.empty();
        return !limited ? nothing : nothing.with(Spent.ORDERS, orders.spent).with(Spent.BYTES, bytes.spent)
                .with(Spent.SECONDS, training.spent).with(Spent.AT, (long) clockS);
    }
}
