package org.sedge.edge.training;

import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.training.Trainer.Progress;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Record;
import org.sedge.edge.wire.Type;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** An optimizer's state, which outlives its round (spec/extensions.md, X12a). */
final class Moments {
    private static final Schema<Record> SCHEMA = Record.schema();
    private static final Field<Record, String> OPTIMIZER = SCHEMA.required("optimizer", Type.text(0, 64));
    private static final Field<Record, Long> STEPS = SCHEMA.required("steps", Type.COUNT);
    private static final Field<Record, List<byte[]>> VECTORS =
            SCHEMA.required("vectors", Type.list(Type.bytes(0, Integer.MAX_VALUE), 1, 2));

    private Moments() {}

    static byte[] encode(Training training, Optimizer optimizer) {
        List<byte[]> vectors = new ArrayList<>();
        for (float[] vector : optimizer.vectors) {
            vectors.add(Vectors.bytes(vector));
        }
        return SCHEMA.empty().with(OPTIMIZER, training.optimizer).with(STEPS, optimizer.steps)
                .with(VECTORS, vectors).encode();
    }

    /** A training from theta (n,) that begins with the state; null to start anew, as with another optimizer. */
    static Progress begin(byte[] data, Training training, float[] theta) {
        Record found;
        try {
            found = SCHEMA.decode(data);
        } catch (IllegalArgumentException anotherVersions) {
            return null;
        }
        List<float[]> vectors = new ArrayList<>();
        vectors.add(theta);
        for (byte[] vector : found.get(VECTORS)) {
            vectors.add(Vectors.floats(vector));
            if (vector.length != 4L * theta.length) {
                return null;
            }
        }
        boolean fits = found.get(OPTIMIZER).equals(training.optimizer);
        return fits ? new Progress(0, found.get(STEPS), Collections.<Double>emptyList(), vectors) : null;
    }
}
