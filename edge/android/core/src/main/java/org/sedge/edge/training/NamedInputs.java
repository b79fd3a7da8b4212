package org.sedge.edge.training;

import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.wire.Bundle;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Packs several named inputs into the single row that programs take. It works like the protocol's wire/parts.py, with
 * the same error messages.
 */
public final class NamedInputs {
    private NamedInputs() {}

    /**
     * Packs the inputs into rows (N, K).
     *
     * @param given one array (N, ...) for each name
     * @throws DataError unless these are the model's inputs
     */
    public static Rows packed(Map<String, Rows> given, Bundle bundle, String where) throws SedgeException {
        if (given.isEmpty()) {
            throw new DataError(where + ": no inputs, expected x or arrays by name");
        }
        int count = given.values().iterator().next().count;
        for (Map.Entry<String, Rows> entry : given.entrySet()) {
            check(entry.getKey(), entry.getValue(), count, where);
        }
        List<Rows> wanted = new ArrayList<>();
        for (Bundle.Part part : bundle.parts) {
            Rows rows = given.get(part.name);
            if (rows == null || !Arrays.equals(rows.shape(), part.row.shape) || !serves(rows, part.row)) {
                throw new DataError(where + ": " + words(given) + ", but the model takes " + words(bundle.parts));
            }
            wanted.add(rows);
        }
        if (wanted.isEmpty()) {
            throw new DataError(where + ": " + words(given) + ", but the model takes one input without a name");
        }
        float[] packed = new float[Math.multiplyExact(count, (int) bundle.input.size())];
        for (int row = 0, at = 0; row < count; row++) {
            for (Rows rows : wanted) {
                for (int i = row * rows.rowSize; i < (row + 1) * rows.rowSize; i++) {
                    packed[at++] = !rows.isFloat() ? rows.longAt(i) : rows.floatAt(i);
                }
            }
        }
        return new Rows(packed, bundle.input.shape);
    }

    private static void check(String name, Rows rows, int count, String where) throws DataError {
        if (rows.count != count) {
            throw new DataError(where + ": " + name + " has " + rows.count + " rows, expected " + count
                    + ", as in the first");
        }
        for (int i = 0; !rows.isFloat() && i < rows.size(); i++) {
            if (Math.abs(rows.longAt(i)) > Fitting.MAX_INTEGER || rows.longAt(i) == Long.MIN_VALUE) {
                throw new DataError(where + ": " + name + " holds " + rows.longAt(i) + ", expected at most "
                        + Fitting.MAX_INTEGER + " in magnitude");
            }
        }
    }

    /** Returns true if the values have the part's type, or can be converted to it unchanged. */
    private static boolean serves(Rows rows, Bundle.Row wanted) {
        for (int i = 0; rows.isFloat() && wanted.dtype.equals("int64") && i < rows.size(); i++) {
            if (rows.floatAt(i) != Math.rint(rows.floatAt(i))) {
                return false;
            }
        }
        return true;
    }

    private static String words(Map<String, Rows> given) {
        List<String> named = new ArrayList<>();
        for (Map.Entry<String, Rows> entry : given.entrySet()) {
            Rows rows = entry.getValue();
            named.add(entry.getKey() + " " + rows.type.name().toLowerCase(Locale.ROOT) + " " + Rows.tuple(rows.shape()));
        }
        return String.join(", ", named);
    }

    private static String words(List<Bundle.Part> parts) {
        List<String> named = new ArrayList<>();
        for (Bundle.Part part : parts) {
            named.add(part.name + " " + part.row.dtype + " " + Rows.tuple(part.row.shape));
        }
        return String.join(", ", named);
    }
}
