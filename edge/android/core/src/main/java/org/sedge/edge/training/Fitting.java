package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Refusals;

import java.util.Arrays;
import java.util.Locale;

/**
 * Converts examples to the types that a model takes, or says why this is impossible. The error messages are the same as
 * the Python agent's.
 */
public final class Fitting {
    /** The largest magnitude up to which float32 can represent every integer. */
    static final int MAX_INTEGER = 1 << 24;
    /**
     * Labels with this value count towards neither the loss nor the metric. They are allowed only in rows with several
     * labels.
     */
    static final long IGNORED = -100;

    private Fitting() {}

    /**
     * Converts the examples to the model's types if that changes no value.
     *
     * @throws DataError if the examples do not fit the model
     */
    static Examples fitted(Examples examples, Bundle bundle) throws SedgeException {
        if (examples.count() == 0) {
            throw new DataError("x has no rows, expected at least one");
        }
        if (bundle.target != null && examples.targets == null) {
            throw new DataError("there is no y, but the model expects " + bundle.target.dtype + " targets");
        }
        Rows inputs = inputs(examples.inputs, bundle, "x");
        if (bundle.target == null) {
            return new Examples(inputs, examples.targets);
        }
        Rows given = column(examples.targets, bundle.target);
        if (bundle.numClasses > 0 && given.isFloat() && Arrays.equals(given.shape(), bundle.target.shape)) {
            checkFloats(given, bundle.numClasses);
        }
        Rows targets = typed(given, bundle.target, "y");
        check(targets, bundle.target, "y");
        if (bundle.numClasses > 0 && !targets.isFloat()) {
            checkLabels(targets, bundle.numClasses);
        }
        return new Examples(inputs, targets);
    }

    /** Checks integer labels. In a row of several labels some, but not all, may be {@link #IGNORED}. */
    private static void checkLabels(Rows targets, long classes) throws DataError {
        boolean several = targets.shape().length > 0;
        boolean[] counts = new boolean[targets.count];
        for (int i = 0; i < targets.size(); i++) {
            long label = targets.longAt(i);
            boolean is = !several || label != IGNORED;
            counts[i / targets.rowSize] |= is;
            if (is && (label < 0 || label >= classes)) {
                throw noClass(targets, i, label, classes);
            }
        }
        for (int row = 0; row < targets.count; row++) {
            if (!counts[row]) {
                throw new DataError(Refusals.nothingCounts("y", row, IGNORED));
            }
        }
    }

    /**
     * Checks labels that are floats before they are converted: each must be a class or, in a row with several labels,
     * {@link #IGNORED}.
     */
    private static void checkFloats(Rows targets, long classes) throws DataError {
        boolean several = targets.shape().length > 0;
        for (int i = 0; i < targets.size(); i++) {
            float label = targets.floatAt(i);
            boolean isClass = label >= 0 && label < classes && label == Math.rint(label);
            if (!isClass && !(several && label == IGNORED)) {
                throw noClass(targets, i, text(label), classes);
            }
        }
    }

    private static DataError noClass(Rows targets, int i, Object label, long classes) {
        String place = targets.place(i);
        return new DataError(targets.shape().length > 0
                ? Refusals.wrongElement("y", place, label, classes - 1, IGNORED)
                : Refusals.wrongLabel("y", place, label, classes - 1));
    }

    private static String text(float value) {
        return String.valueOf(value).replace("NaN", "nan").replace("Infinity", "inf");
    }

    /**
     * Converts the rows called {@code name} to inputs of the model.
     *
     * @throws DataError if they do not fit
     */
    public static Rows inputs(Rows rows, Bundle bundle, String name) throws SedgeException {
        if (rows.count == 0) {
            throw new DataError(name + " has no rows, expected at least one");
        }
        Rows inputs = typed(rows, bundle.input, name);
        check(inputs, bundle.input, name);
        for (int i = 0; bundle.vocabulary > 0 && !inputs.isFloat() && i < inputs.size(); i++) {
            if (inputs.longAt(i) < 0 || inputs.longAt(i) >= bundle.vocabulary) {
                throw new DataError(
                        Refusals.wrongToken(name, inputs.place(i), inputs.longAt(i), bundle.vocabulary - 1));
            }
        }
        return inputs;
    }

    /**
     * Converts the rows to the model's type. Rows of a wrong shape are returned unchanged, because a later check has a
     * better message for them.
     */
    private static Rows typed(Rows rows, Bundle.Row wanted, String name) throws SedgeException {
        if (type(rows).equals(wanted.dtype) || !Arrays.equals(rows.shape(), wanted.shape)) {
            return rows;
        }
        int count = rows.count * rows.rowSize;
        float[] floats = new float[!rows.isFloat() ? count : 0];
        long[] longs = new long[!rows.isFloat() ? 0 : count];
        for (int i = 0; i < count; i++) {
            if (!rows.isFloat()) {
                exact(Math.abs(rows.longAt(i)) <= MAX_INTEGER && rows.longAt(i) != Long.MIN_VALUE,
                        rows, wanted, name, i, String.valueOf(rows.longAt(i)));
                floats[i] = rows.longAt(i);
            } else {
                float value = rows.floatAt(i);
                exact(Math.abs(value) <= MAX_INTEGER && value == Math.rint(value),
                        rows, wanted, name, i, text(value));
                longs[i] = (long) value;
            }
        }
        return !rows.isFloat() ? new Rows(floats, rows.shape()) : new Rows(longs, rows.shape());
    }

    private static void exact(boolean isExact, Rows rows, Bundle.Row wanted, String name, int i, String value)
            throws DataError {
        if (!isExact) {
            throw new DataError(name + " is " + type(rows) + " and " + name + "[" + i / rows.rowSize + "] holds " + value
                    + ", but the model expects " + wanted.dtype + ": only whole numbers are converted, at most "
                    + MAX_INTEGER + " in magnitude");
        }
    }

    /** Converts single numbers (N,) to a column (N, 1) or vice versa, as the model requires. */
    private static Rows column(Rows targets, Bundle.Row wanted) throws SedgeException {
        boolean single = targets.rowSize == 1 && targets.shape().length + wanted.shape.length == 1
                && (wanted.shape.length == 0 || wanted.shape[0] == 1);
        if (!single) {
            return targets;
        }
        return targets.reshaped(wanted.shape);
    }

    private static String type(Rows rows) {
        return rows.type.name().toLowerCase(Locale.ROOT);
    }

    private static void check(Rows rows, Bundle.Row expected, String name) throws DataError {
        if (!type(rows).equals(expected.dtype)) {
            throw new DataError(name + " is " + type(rows) + ", but the model expects " + expected.dtype);
        }
        if (!Arrays.equals(rows.shape(), expected.shape)) {
            throw new DataError(name + " has rows of shape " + Rows.tuple(rows.shape()) + ", but the model expects "
                    + Rows.tuple(expected.shape));
        }
        for (int i = 0; rows.isFloat() && i < rows.size(); i++) {
            if (Float.isNaN(rows.floatAt(i)) || Float.isInfinite(rows.floatAt(i))) {
                throw new DataError(name + "[" + i / rows.rowSize
                        + "] holds NaN or inf, expected finite float32 numbers");
            }
        }
    }
}
