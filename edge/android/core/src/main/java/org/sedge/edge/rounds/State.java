package org.sedge.edge.rounds;

import org.sedge.edge.jobs.Kept;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Metric;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Struct;
import org.sedge.edge.wire.Type;

import java.util.Collections;
import java.util.List;
import java.util.Map;

/** Everything of a device that must survive, committed as one. */
public final class State {
    /** An update without a receipt, and what to tell a person with it: the metric before and after. */
    public static final class Pending {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<byte[]> BLOB = SCHEMA.required("blob", Type.HASH);
        public static final Field<Metric> METRIC = SCHEMA.required("metric", Metric.TYPE);
        public static final Field<Double> BEFORE = SCHEMA.required("before", Type.FINITE);
        public static final Field<Double> AFTER = SCHEMA.required("after", Type.FINITE);
    }

    /** In how many starts of the agent an order was begun and not finished. */
    public static final class Attempt {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<byte[]> MODEL_HASH = SCHEMA.required("model_hash", Type.HASH);
        public static final Field<Long> STARTS = SCHEMA.required("starts", Type.COUNT);
        public static final Field<Long> INCARNATION = SCHEMA.required("incarnation", Type.COUNT);
    }

    /** Where an order's job was stopped on purpose. */
    public static final class Stopped {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<byte[]> CHECKPOINT = SCHEMA.required("checkpoint", Type.HASH);
    }

    /** What has been spent of the device's limits and has not drained yet, at a time of its clock. */
    public static final class Spent {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<Double> ORDERS = SCHEMA.optional("orders", Type.FINITE, 0.0);
        public static final Field<Double> BYTES = SCHEMA.optional("bytes", Type.FINITE, 0.0);
        public static final Field<Double> SECONDS = SCHEMA.optional("seconds", Type.FINITE, 0.0);
        public static final Field<Long> AT = SCHEMA.optional("at", Type.COUNT, 0L);
    }

    public static final Schema SCHEMA = Schema.whole();
    public static final Field<Long> INCARNATION = SCHEMA.optional("incarnation", Type.COUNT, 0L);
    public static final Field<Long> COORDINATOR = SCHEMA.optional("coordinator", Type.COUNT, 0L);
    /** The fingerprint of the keys that both start counts belong to. */
    public static final Field<byte[]> KEY = SCHEMA.optional("key", Type.bytes(0, 16), new byte[0]);
    public static final Field<Long> CHUNK_BYTES = SCHEMA.optional("chunk_bytes", Type.integer(4096, 1 << 18), 65536L);
    public static final Field<Map<String, Struct>> RUNS =
            SCHEMA.optional("runs", Type.map(Kept.SCHEMA, 4 * StateStore.MAX_RUNS), Collections.emptyMap());
    public static final Field<Map<String, Struct>> ORDERS =
            SCHEMA.optional("orders", Type.map(Order.SCHEMA, 4 * StateStore.MAX_RUNS), Collections.emptyMap());
    public static final Field<List<Struct>> OUTBOX =
            SCHEMA.optional("outbox", Type.list(Pending.SCHEMA, 0, 1 << 20), Collections.emptyList());
    /** The runs of the last orders, oldest first. */
    public static final Field<List<String>> RECENT =
            SCHEMA.optional("recent", Type.list(Type.ID, 0, StateStore.MAX_RUNS), Collections.emptyList());
    public static final Field<Map<String, Struct>> ATTEMPTS =
            SCHEMA.optional("attempts", Type.map(Attempt.SCHEMA, 4 * StateStore.MAX_RUNS), Collections.emptyMap());
    public static final Field<Map<String, Struct>> STOPPED =
            SCHEMA.optional("stopped", Type.map(Stopped.SCHEMA, 4 * StateStore.MAX_RUNS), Collections.emptyMap());
    public static final Field<Struct> SPENT = SCHEMA.optional("spent", Spent.SCHEMA, Spent.SCHEMA.empty());

    private State() {}
}
