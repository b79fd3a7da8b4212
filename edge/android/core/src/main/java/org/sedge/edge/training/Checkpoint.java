package org.sedge.edge.training;

import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.wire.Messages.Metrics;
import org.sedge.edge.wire.Record;
import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Type;

import java.util.Arrays;
import java.util.List;

/** What a stopped job leaves, so that the next attempt goes on with the same bits. */
final class Checkpoint {
    /** Raised with every change of what a checkpoint means, or of how examples are shuffled. */
    static final String FORMAT = "checkpoint 2";
    private static final Type<byte[]> BYTES = Type.bytes(0, Integer.MAX_VALUE);
    static final Schema<Record> SCHEMA = Record.schema();
    /** What it belongs to; for any other job it is worth nothing. */
    static final Field<Record, byte[]> JOB = SCHEMA.required("job", Type.HASH);
    static final Field<Record, Metrics> BEFORE = SCHEMA.required("before", Metrics.SCHEMA);
    /** Which training was stopped, from 0, and the steps of those before it. */
    static final Field<Record, Long> PHASE = SCHEMA.required("phase", Type.COUNT);
    static final Field<Record, Long> EARLIER_STEPS = SCHEMA.required("earlier_steps", Type.COUNT);
    static final Field<Record, Double> SECONDS = SCHEMA.required("seconds", Type.FINITE);
    /** What the first training leaves to the next round ({@link Moments}); null: nothing. */
    static final Field<Record, byte[]> MOMENTS = SCHEMA.required("moments", Type.orNil(BYTES));
    private static final Field<Record, Long> STEPS = SCHEMA.required("steps", Type.COUNT);
    private static final Field<Record, List<Double>> LOSSES =
            SCHEMA.required("losses", Type.list(Type.FINITE, 0, Integer.MAX_VALUE));
    private static final Field<Record, List<byte[]>> VECTORS = SCHEMA.required("vectors", Type.list(BYTES, 1, 3));
    private static final Field<Record, byte[]> MEAN = SCHEMA.required("mean", Type.orNil(BYTES));

    private Checkpoint() {}

    static Record with(Record checkpoint, TrainingState state) {
        return checkpoint.with(STEPS, state.steps).with(LOSSES, state.losses)
                .with(VECTORS, Vectors.coded(state.vectors))
                .with(MEAN, state.mean == null ? null : Vectors.bytes(state.mean));
    }

    static TrainingState state(Record checkpoint) {
        byte[] mean = checkpoint.get(MEAN);
        return new TrainingState(checkpoint.get(STEPS), checkpoint.get(LOSSES),
                Vectors.decoded(checkpoint.get(VECTORS)), mean == null ? null : Vectors.floats(mean));
    }

    /** The checkpoint in the bytes; null for none, or one of another job. */
    static Record decode(byte[] data, byte[] job) {
        try {
            Record found = SCHEMA.decode(data);
            return Arrays.equals(found.get(JOB), job) ? found : null;
        } catch (IllegalArgumentException anotherVersions) {
            return null;
        }
    }
}
