package org.sedge.edge;

import org.sedge.edge.training.Pcg64;

import java.util.Arrays;

/** A device's labelled examples. */
public final class Examples {
    /** The rows one after the other, each in row-major order. */
    public final float[] inputs;
    /** Shape of one row; empty for a single number. */
    public final long[] sampleShape;
    /** One label for each row. */
    public final long[] labels;
    /** Numbers in one row. */
    public final int rowSize;

    /** The arrays are kept, not copied. Throws {@code DataError} where the sizes disagree. */
    public Examples(float[] inputs, long[] sampleShape, long[] labels) throws SedgeException {
        long size = 1;
        for (long extent : sampleShape) {
            if (extent < 1 || size * extent > Integer.MAX_VALUE) {
                throw new SedgeException.DataError(
                        "sampleShape " + Arrays.toString(sampleShape) + ": expected positive extents, at most 2^31 in all");
            }
            size *= extent;
        }
        if (inputs.length != size * labels.length) {
            throw new SedgeException.DataError("inputs: found " + inputs.length + " numbers, expected " + labels.length
                    + " rows of " + size);
        }
        this.inputs = inputs;
        this.sampleShape = sampleShape.clone();
        this.labels = labels;
        this.rowSize = (int) size;
    }

    /** Number of examples. */
    public int count() {
        return labels.length;
    }

    /**
     * The training and the test part: the same rows as the Python agent's split, each part ascending.
     *
     * @param testFraction share of the test part, which has at least one example, and not all
     */
    public Examples[] split(double testFraction, long seed) throws SedgeException {
        if (count() < 2) {
            throw new SedgeException.DataError(count() + " examples cannot be split, expected at least 2");
        }
        int[] order = new Pcg64(seed).permutation(count());
        int test = Math.min(Math.max(1, (int) Math.rint(testFraction * count())), count() - 1);
        return new Examples[] {rows(order, test, count()), rows(order, 0, test)};
    }

    private Examples rows(int[] order, int from, int to) throws SedgeException {
        int[] rows = Arrays.copyOfRange(order, from, to);
        Arrays.sort(rows);
        float[] x = new float[rows.length * rowSize];
        long[] y = new long[rows.length];
        for (int i = 0; i < rows.length; i++) {
            System.arraycopy(inputs, rows[i] * rowSize, x, i * rowSize, rowSize);
            y[i] = labels[rows[i]];
        }
        return new Examples(x, sampleShape, y);
    }
}
