// Written by `make spec` from the Python code: changes here are lost.
package org.sedge.edge.rounds;

import org.sedge.edge.jobs.Kept;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Metric;
import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Struct;
import org.sedge.edge.wire.Type;

import java.util.Collections;
import java.util.List;
import java.util.Map;

/** The durable state of a device, which is committed atomically. */
public final class State extends Struct<State> {
    /** An update that the coordinator has not acknowledged yet. */
    public static final class Pending extends Struct<Pending> {
        public static final Schema<Pending> SCHEMA = new Schema<Pending>(false) {
            @Override
            protected Pending make(Object[] given) {
                return new Pending(given);
            }
        };
        public static final Field<Pending, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Pending, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Pending, byte[]> BLOB = SCHEMA.required("blob", Type.HASH);
        public static final Field<Pending, Metric> METRIC = SCHEMA.required("metric", Metric.SCHEMA);
        public static final Field<Pending, Double> BEFORE = SCHEMA.required("before", Type.FINITE);
        public static final Field<Pending, Double> AFTER = SCHEMA.required("after", Type.FINITE);

        /** The order's run. */
        public final String run;
        /** The order's round. */
        public final long round;
        /** The update. */
        public final byte[] blob;
        /** The metric to show to the user. */
        public final Metric metric;
        /** The metric's value before training. */
        public final double before;
        /** The metric's value after training. */
        public final double after;

        private Pending(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
            blob = BLOB.in(given);
            metric = METRIC.in(given);
            before = BEFORE.in(given);
            after = AFTER.in(given);
        }
    }

    /** Counts the starts of the agent that have begun an order without finishing it. */
    public static final class Attempt extends Struct<Attempt> {
        public static final Schema<Attempt> SCHEMA = new Schema<Attempt>(false) {
            @Override
            protected Attempt make(Object[] given) {
                return new Attempt(given);
            }
        };
        public static final Field<Attempt, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Attempt, byte[]> MODEL_HASH = SCHEMA.required("model_hash", Type.HASH);
        public static final Field<Attempt, Long> STARTS = SCHEMA.required("starts", Type.COUNT);
        public static final Field<Attempt, Long> INCARNATION = SCHEMA.required("incarnation", Type.COUNT);

        /** The round of the order. */
        public final long round;
        /** The model hash of the order, because another coordinator may reuse the run's name. */
        public final byte[] modelHash;
        /** The number of starts that have begun the order. */
        public final long starts;
        /** The start count of the last such start. */
        public final long incarnation;

        private Attempt(Object[] given) {
            super(SCHEMA, given);
            round = ROUND.in(given);
            modelHash = MODEL_HASH.in(given);
            starts = STARTS.in(given);
            incarnation = INCARNATION.in(given);
        }
    }

    /** Where to continue an order's job that was stopped on purpose. */
    public static final class Stopped extends Struct<Stopped> {
        public static final Schema<Stopped> SCHEMA = new Schema<Stopped>(false) {
            @Override
            protected Stopped make(Object[] given) {
                return new Stopped(given);
            }
        };
        public static final Field<Stopped, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Stopped, byte[]> CHECKPOINT = SCHEMA.required("checkpoint", Type.HASH);

        /** The round of the order. */
        public final long round;
        /** The blob to continue from. */
        public final byte[] checkpoint;

        private Stopped(Object[] given) {
            super(SCHEMA, given);
            round = ROUND.in(given);
            checkpoint = CHECKPOINT.in(given);
        }
    }

    /** How much of each of the device's limits has been spent and has not drained yet. */
    public static final class Spent extends Struct<Spent> {
        public static final Schema<Spent> SCHEMA = new Schema<Spent>(true) {
            @Override
            protected Spent make(Object[] given) {
                return new Spent(given);
            }
        };
        public static final Field<Spent, Double> ORDERS = SCHEMA.optional("orders", Type.FINITE, 0.0);
        public static final Field<Spent, Double> BYTES = SCHEMA.optional("bytes", Type.FINITE, 0.0);
        public static final Field<Spent, Double> SECONDS = SCHEMA.optional("seconds", Type.FINITE, 0.0);
        public static final Field<Spent, Long> AT =
                SCHEMA.optional("at", Type.integer(Long.MIN_VALUE, Long.MAX_VALUE), 0L);

        /** The number of orders accepted. */
        public final double orders;
        /** The number of bytes received. */
        public final double bytes;
        /** The number of seconds spent training. */
        public final double seconds;
        /** When these amounts were recorded, in Unix seconds of the device's clock, or 0 if they never were. */
        public final long at;

        private Spent(Object[] given) {
            super(SCHEMA, given);
            orders = ORDERS.in(given);
            bytes = BYTES.in(given);
            seconds = SECONDS.in(given);
            at = AT.in(given);
        }
    }

    /** The last policy under which an order of a run was accepted. */
    public static final class TakenPolicy extends Struct<TakenPolicy> {
        public static final Schema<TakenPolicy> SCHEMA = new Schema<TakenPolicy>(false) {
            @Override
            protected TakenPolicy make(Object[] given) {
                return new TakenPolicy(given);
            }
        };
        public static final Field<TakenPolicy, Long> VERSION = SCHEMA.required("version", Type.COUNT);
        public static final Field<TakenPolicy, byte[]> KEY = SCHEMA.required("key", Type.bytes(0, 8));

        /** The version of the policy. */
        public final long version;
        /** The id of the key that signed the policy. */
        public final byte[] key;

        private TakenPolicy(Object[] given) {
            super(SCHEMA, given);
            version = VERSION.in(given);
            key = KEY.in(given);
        }
    }

    public static final Schema<State> SCHEMA = new Schema<State>(false) {
        @Override
        protected State make(Object[] given) {
            return new State(given);
        }
    };
    public static final Field<State, Long> INCARNATION = SCHEMA.optional("incarnation", Type.COUNT, 0L);
    public static final Field<State, Long> COORDINATOR = SCHEMA.optional("coordinator", Type.COUNT, 0L);
    public static final Field<State, byte[]> KEY = SCHEMA.optional("key", Type.bytes(0, 16), new byte[0]);
    public static final Field<State, Long> CHUNK_BYTES =
            SCHEMA.optional("chunk_bytes", Type.integer(4096, 262144), 65536L);
    public static final Field<State, Map<String, Kept>> RUNS =
            SCHEMA.optional("runs", Type.map(Kept.SCHEMA, 64), Collections.emptyMap());
    public static final Field<State, Map<String, Order>> ORDERS =
            SCHEMA.optional("orders", Type.map(Order.SCHEMA, 64), Collections.emptyMap());
    public static final Field<State, List<Pending>> OUTBOX =
            SCHEMA.optional("outbox", Type.list(Pending.SCHEMA, 0, 1048576), Collections.emptyList());
    public static final Field<State, List<String>> RECENT =
            SCHEMA.optional("recent", Type.list(Type.ID, 0, 16), Collections.emptyList());
    public static final Field<State, Map<String, Attempt>> ATTEMPTS =
            SCHEMA.optional("attempts", Type.map(Attempt.SCHEMA, 64), Collections.emptyMap());
    public static final Field<State, Map<String, Stopped>> STOPPED =
            SCHEMA.optional("stopped", Type.map(Stopped.SCHEMA, 64), Collections.emptyMap());
    public static final Field<State, Spent> SPENT = SCHEMA.optional("spent", Spent.SCHEMA, Spent.SCHEMA.empty());
    public static final Field<State, Map<String, TakenPolicy>> POLICIES =
            SCHEMA.optional("policies", Type.map(TakenPolicy.SCHEMA, 64), Collections.emptyMap());
    public static final Field<State, byte[]> SETTINGS =
            SCHEMA.optional("settings", Type.bytes(0, 2048), new byte[0]);
    public static final Field<State, Map<String, byte[]>> REPLACED =
            SCHEMA.optional("replaced", Type.map(Type.HASH, 64), Collections.emptyMap());

    /** The device's start count. */
    public final long incarnation;
    /** The newest start count received from the coordinator. */
    public final long coordinator;
    /** The fingerprint of the keys to which both start counts belong. */
    public final byte[] key;
    /** The last chunk size that the link could carry. */
    public final long chunkBytes;
    /** The state of each run. */
    public final Map<String, Kept> runs;
    /** The orders to work on, keyed by run. */
    public final Map<String, Order> orders;
    /** The updates to send. */
    public final List<Pending> outbox;
    /** The runs of the last orders, oldest first. */
    public final List<String> recent;
    /** The unfinished jobs, keyed by run. */
    public final Map<String, Attempt> attempts;
    /** The jobs that can continue from a checkpoint, keyed by run. */
    public final Map<String, Stopped> stopped;
    /** The usage that counts towards the device's limits. */
    public final Spent spent;
    /** The policies of the last accepted orders, keyed by run. */
    public final Map<String, TakenPolicy> policies;
    /** The settings from the coordinator, as it sent them. */
    public final byte[] settings;
    /** The public keys that have replaced signing keys, keyed by the ids of the old keys. */
    public final Map<String, byte[]> replaced;

    private State(Object[] given) {
        super(SCHEMA, given);
        incarnation = INCARNATION.in(given);
        coordinator = COORDINATOR.in(given);
        key = KEY.in(given);
        chunkBytes = CHUNK_BYTES.in(given);
        runs = RUNS.in(given);
        orders = ORDERS.in(given);
        outbox = OUTBOX.in(given);
        recent = RECENT.in(given);
        attempts = ATTEMPTS.in(given);
        stopped = STOPPED.in(given);
        spent = SPENT.in(given);
        policies = POLICIES.in(given);
        settings = SETTINGS.in(given);
        replaced = REPLACED.in(given);
    }
}
