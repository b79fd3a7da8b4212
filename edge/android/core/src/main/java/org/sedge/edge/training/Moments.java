package org.sedge.edge.training;

import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Record;
import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Type;

import java.util.List;

/** An optimizer's state, which is kept across rounds (spec/extensions.md, X12a). */
public final class Moments {
    private static final Schema<Record> SCHEMA = Record.schema();
    private static final Field<Record, String> OPTIMIZER = SCHEMA.required("optimizer", Type.text(0, 64));
    private static final Field<Record, Long> STEPS = SCHEMA.required("steps", Type.COUNT);
    private static final Field<Record, List<byte[]>> VECTORS =
            SCHEMA.required("vectors", Type.list(Type.bytes(0, Integer.MAX_VALUE), 1, 2));

    private final String optimizer;
    /** The number of steps taken so far. */
    public final long steps;
    /** The optimizer's vectors, (n,) each. */
    public final List<float[]> vectors;

    public Moments(String optimizer, long steps, List<float[]> vectors) {
        this.optimizer = optimizer;
        this.steps = steps;
        this.vectors = vectors;
    }

    byte[] encode() {
        return SCHEMA.empty().with(OPTIMIZER, optimizer).with(STEPS, steps).with(VECTORS, Vectors.coded(vectors)).encode();
    }

    /**
     * Decodes the state for a model of n parameters. Returns null if the optimizer must start from zeros, for example
     * because it has been replaced by another one.
     */
    static Moments decode(byte[] data, Training training, int size) {
        Record found;
        try {
            found = SCHEMA.decode(data);
        } catch (IllegalArgumentException anotherVersions) {
            return null;
        }
        for (byte[] vector : found.get(VECTORS)) {
            if (vector.length != 4L * size) {
                return null;
            }
        }
        boolean fits = found.get(OPTIMIZER).equals(training.optimizer);
        return fits ? new Moments(found.get(OPTIMIZER), found.get(STEPS), Vectors.decoded(found.get(VECTORS))) : null;
    }
}
