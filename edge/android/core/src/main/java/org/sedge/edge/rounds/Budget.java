package org.sedge.edge.rounds;

import org.sedge.edge.Limits;
import org.sedge.edge.rounds.State.Spent;

import java.util.Locale;

/**
 * What a device may still do, by its own limits; without any, anything.
 *
 * <p>Each limit is a bucket that fills with what is spent and drains evenly, an hour's worth in an hour or a day's in a
 * day. A full one closes until a tenth of it has drained. Time does not go back while the agent runs; what was spent is
 * committed with the rest of the state, and drains over the time from the last commit to a new start, by the device's
 * clock, but at most over a day. So neither a clock that starts in the past nor a restart gives anything.
 */
final class Budget {
    private static final double HOUR_S = 3600;
    private static final double DAY_S = 86400;
    /** Orders at one moment, and the seconds in which as many come back. */
    private static final int MOMENT = 32;
    private static final double MOMENT_S = 0.32;
    /** Starts of a coordinator in an hour, each of which costs a commit. */
    private static final int STARTS = 60;
    /** What may be spent before it is committed by itself; every other commit carries it too. */
    private static final double COMMIT_BYTES = 64e6;
    private static final double COMMIT_S = 600;

    private static final class Bucket {
        final double limit;
        final double rate;
        double spent;
        private boolean full;

        Bucket(double limit, double periodS, double spent) {
            this.limit = limit;
            this.spent = spent;
            rate = limit / periodS;
        }

        void drain(double seconds) {
            spent = Math.max(0, spent - rate * seconds);
        }

        boolean take() {
            if (spent + 1 > limit) {
                return false;
            }
            spent++;
            return true;
        }

        /** Seconds that it stays closed, from full until a tenth has drained; 0 while it is open. */
        double closedS() {
            double openAt = 0.9 * limit;
            full = spent >= limit || (full && spent > openAt);
            return full ? (spent - openAt) / rate : 0;
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
    /** When a job that runs must stop; read by its own thread. */
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

    /** Unix seconds by the device's clock, as it was set at this start. */
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

    /** Whether frames of another start of the coordinator are heard. */
    boolean start() {
        return !limited || starts.take();
    }

    /** What becomes of an order: null is taken on, "" dropped, anything else is why it is declined. */
    String order() {
        if (!limited) {
            return null;
        }
        if (!moment.take()) {
            return "";
        }
        return orders.take() ? null : "the limit of orders an hour: more than " + Math.round(orders.limit)
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

    /** Why nothing is fetched or begun now; empty when it may be. */
    String closed() {
        double bytesS = limited ? bytes.closedS() : 0;
        double trainingS = limited ? training.closedS() : 0;
        String first = bytesS > 0 ? reason("megabytes a day: no more downloads", bytesS) : "";
        String second = trainingS > 0 ? reason("training hours a day: no more training", trainingS) : "";
        return first + (first.isEmpty() || second.isEmpty() ? "" : "; ") + second;
    }

    private static String reason(String what, double seconds) {
        return String.format(Locale.ROOT, "the limit of %s for another %.1f hours", what, seconds / HOUR_S);
    }

    /** Whether the job that runs has used the training time up; from any thread. */
    boolean mustStop(double time) {
        return time >= stopAt;
    }

    /** Whether so much was spent since the last commit that it deserves one of its own. */
    boolean owes() {
        return limited && (newBytes >= COMMIT_BYTES || newS >= COMMIT_S);
    }

    /** What to commit, with whatever else is committed. */
    Spent commit() {
        newBytes = 0;
        newS = 0;
        Spent nothing = Spent.SCHEMA.empty();
        return !limited ? nothing : nothing.with(Spent.ORDERS, orders.spent).with(Spent.BYTES, bytes.spent)
                .with(Spent.SECONDS, training.spent).with(Spent.AT, (long) clockS);
    }
}
