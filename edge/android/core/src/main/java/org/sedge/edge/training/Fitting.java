package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.wire.Bundle;

import java.util.Arrays;
import java.util.Locale;

/** Whether a model can be trained and evaluated on examples; the texts are the Python agent's. */
final class Fitting {
    private Fitting() {}

    /** Throws {@code DataError} for examples that the model does not take. */
    static void check(Examples examples, Bundle bundle) throws DataError {
        if (examples.count() == 0) {
            throw new DataError("x has no rows, expected at least one");
        }
        check(examples.inputs, bundle.input, "x");
        if (bundle.target == null) {
            return;
        }
        if (examples.targets == null) {
            throw new DataError("there is no y, the model expects " + bundle.target.dtype + " targets");
        }
        check(examples.targets, bundle.target, "y");
        long[] labels = examples.targets.longs;
        for (int i = 0; bundle.numClasses > 0 && labels != null && i < labels.length; i++) {
            if (labels[i] < 0 || labels[i] >= bundle.numClasses) {
                throw new DataError("y[" + i / examples.targets.rowSize + "] is " + labels[i]
                        + ", the model has classes 0 to " + (bundle.numClasses - 1));
            }
        }
    }

    private static void check(Rows rows, Bundle.Row expected, String name) throws DataError {
        String found = rows.type.name().toLowerCase(Locale.ROOT);
        if (!found.equals(expected.dtype)) {
            throw new DataError(name + " is " + found + ", the model expects " + expected.dtype);
        }
        if (!Arrays.equals(rows.shape, expected.shape)) {
            throw new DataError(name + " has rows of shape " + Rows.tuple(rows.shape) + ", the model expects "
                    + Rows.tuple(expected.shape));
        }
        for (int i = 0; rows.floats != null && i < rows.floats.length; i++) {
            if (Float.isNaN(rows.floats[i]) || Float.isInfinite(rows.floats[i])) {
                throw new DataError(name + "[" + i / rows.rowSize
                        + "] holds NaN or inf, expected finite numbers, as float32");
            }
        }
    }
}
