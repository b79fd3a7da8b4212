package org.sedge.edge.rounds;

import org.sedge.edge.Limits;
import org.sedge.edge.rounds.State.Spent;

import java.util.Locale;

/**
 * Tracks how much of the device's own limits is left. Without limits, everything is allowed.
 *
 * <p>Each limit is a bucket. Spending fills it, and it drains at a constant rate: its whole capacity in an hour or a
 * day. A full bucket stays closed until a tenth of it has drained. While the agent runs, time is monotonic. The amounts
 * spent are committed with the rest of the state. At a new start, the buckets drain for the time that has passed since
 * the last commit according to the device's clock, but for at most a day. So neither a clock that starts in the past
 * nor a restart yields any extra budget.
 */
final class Budget {
    private static final double HOUR_S = 3600;
    private static final double DAY_S = 86400;
    /** The maximum number of orders in a burst. Another such burst is allowed after {@link #MOMENT_S}. */
    private static final int MOMENT = 32;
    private static final double MOMENT_S = 0.32;
    /** How many restarts of a coordinator are accepted per hour. They are limited because each costs a commit. */
    private static final int STARTS = 60;
    /** Spending this many bytes or seconds triggers a commit, unless another commit has already recorded them. */
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

        /**
         * Returns the number of seconds until a full bucket opens, which happens when a tenth of it has drained, or 0
         * if it is already open.
         */
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
    /** The time at which a running job must stop. The job's thread reads it. */
    private volatile double stopAt = Double.POSITIVE_INFINITY;

    /** @param clockS the Unix time of this start; the clock need not be right */
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

    /** Replaces the limits with stricter ones than the device's own, or restores its own. */
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

    /** Returns the device's Unix time: its clock at this start, plus the time that has passed since. */
    double clockS() {
        return clockS;
    }

    void received(int size) {
        bytes.spent += size;
        newBytes += size;
    }

    /** Call this when a job begins or ends. */
    void works(boolean begins) {
        working = begins;
    }

    /** Returns true if the frames of a restarted coordinator may be accepted, and counts the restart. */
    boolean start() {
        return !limited || starts.take();
    }

    /**
     * Decides whether to accept an order. Returns null to accept it, "" to drop it silently, or the reason to decline
     * it.
     */
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

    /** Returns true if a refused order should be logged now, which is the case once an hour. */
    boolean tells() {
        if (now < tellAt) {
            return false;
        }
        tellAt = now + HOUR_S;
        return true;
    }

    /** Returns why nothing may be fetched or begun now, or "" if it may. */
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

    /** Returns true if the running job has used up the day's training time. Any thread may call it. */
    boolean mustStop(double time) {
        return time >= stopAt;
    }

    /** Returns true if enough was spent since the last commit to justify another one. */
    boolean owes() {
        return limited && (newBytes >= COMMIT_BYTES || newS >= COMMIT_S);
    }

    /** Returns the amounts spent, which the caller must commit. */
    Spent commit() {
        newBytes = 0;
        newS = 0;
        Spent nothing = Spent.SCHEMA.empty();
        return !limited ? nothing : nothing.with(Spent.ORDERS, orders.spent).with(Spent.BYTES, bytes.spent)
                .with(Spent.SECONDS, training.spent).with(Spent.AT, (long) clockS);
    }
}
