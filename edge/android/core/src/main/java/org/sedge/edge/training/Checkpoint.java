package org.sedge.edge.training;

import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.wire.Messages.Metrics;
import org.sedge.edge.wire.Record;
import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Type;

import java.util.Arrays;
import java.util.List;

/** The state of a stopped job. The next attempt continues from it, with bit-identical results. */
final class Checkpoint {
    /** Change this whenever the meaning of a checkpoint or the shuffling of examples changes. */
    static final String FORMAT = "checkpoint 2";
    private static final Type<byte[]> BYTES = Type.bytes(0, Integer.MAX_VALUE);
    static final Schema<Record> SCHEMA = Record.schema();
    /** The hash of the checkpoint's job. Other jobs must not continue from the checkpoint. */
    static final Field<Record, byte[]> JOB = SCHEMA.required("job", Type.HASH);
    static final Field<Record, Metrics> BEFORE = SCHEMA.required("before", Metrics.SCHEMA);
    /** The index of the stopped training phase, from 0. The next field counts the steps of all earlier phases. */
    static final Field<Record, Long> PHASE = SCHEMA.required("phase", Type.COUNT);
    static final Field<Record, Long> EARLIER_STEPS = SCHEMA.required("earlier_steps", Type.COUNT);
    static final Field<Record, Double> SECONDS = SCHEMA.required("seconds", Type.FINITE);
    /**
     * The optimizer's state after the first training phase, kept for the next round ({@link Moments}); nil if none is
     * kept.
     */
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

    /** Decodes a checkpoint. Returns null if it is invalid or belongs to another job. */
    static Record decode(byte[] data, byte[] job) {
        try {
            Record found = SCHEMA.decode(data);
            return Arrays.equals(found.get(JOB), job) ? found : null;
        } catch (IllegalArgumentException anotherVersions) {
            return null;
        }
    }
}
