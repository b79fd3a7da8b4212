package org.sedge.edge;

import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.backends.Tensor;

import java.nio.ByteBuffer;
import java.util.Arrays;

/** Rows of float32 or int64 numbers. All rows have the same shape. */
public final class Rows {
    public final Tensor.Type type;
    /** The number of values in one row. */
    public final int rowSize;
    public final int count;
    private final long[] shape;
    private final float[] floats;
    private final long[] longs;

    /**
     * Wraps the array without copying it.
     *
     * @throws DataError unless it holds whole rows of the shape
     */
    public Rows(float[] values, long... shape) throws SedgeException {
        this(Tensor.Type.FLOAT32, values, null, values.length, shape);
    }

    /**
     * Wraps the array without copying it.
     *
     * @throws DataError unless it holds whole rows of the shape
     */
    public Rows(long[] values, long... shape) throws SedgeException {
        this(Tensor.Type.INT64, null, values, values.length, shape);
    }

    private Rows(Tensor.Type type, float[] floats, long[] longs, int found, long[] shape) throws DataError {
        long size = 1;
        for (long extent : shape) {
            if (extent < 1 || size * extent > Integer.MAX_VALUE) {
                throw new DataError("rows of shape " + tuple(shape) + ", expected positive extents, at most 2^31 in all");
            }
            size *= extent;
        }
        if (found % size != 0) {
            throw new DataError(found + " numbers, expected rows of shape " + tuple(shape));
        }
        this.type = type;
        this.floats = floats;
        this.longs = longs;
        this.shape = shape.clone();
        rowSize = (int) size;
        count = found / rowSize;
    }

    /** Returns the shape of one row, which is empty for a single number. */
    public long[] shape() {
        return shape.clone();
    }

    /** Returns true if the values are float32, and false if they are int64. */
    public boolean isFloat() {
        return floats != null;
    }

    /** Returns the number of values in all rows together. */
    public int size() {
        return count * rowSize;
    }

    /** Returns the i-th value of float32 rows. The rows follow one another, each in row-major order. */
    public float floatAt(int i) {
        return floats[i];
    }

    /** Returns the i-th value of int64 rows, in the same order. */
    public long longAt(int i) {
        return longs[i];
    }

    /** Returns a copy of all values of float32 rows. */
    public float[] floats() {
        return floats.clone();
    }

    /** Returns a copy of all values of int64 rows. */
    public long[] longs() {
        return longs.clone();
    }

    /** Returns the same values as rows of another shape. */
    public Rows reshaped(long... other) throws SedgeException {
        return new Rows(type, floats, longs, size(), other);
    }

    /** Returns a copy of the rows with these indices. */
    Rows at(int[] rows) throws SedgeException {
        float[] someFloats = floats == null ? null : new float[rows.length * rowSize];
        long[] someLongs = longs == null ? null : new long[rows.length * rowSize];
        for (int i = 0; i < rows.length; i++) {
            System.arraycopy(floats == null ? longs : floats, rows[i] * rowSize,
                    floats == null ? someLongs : someFloats, i * rowSize, rowSize);
        }
        return new Rows(type, someFloats, someLongs, rows.length * rowSize, shape);
    }

    /** Writes a row into a little-endian buffer and advances the buffer's position. */
    public void put(int row, ByteBuffer out) {
        if (floats == null) {
            out.asLongBuffer().put(longs, row * rowSize, rowSize);
        } else {
            out.asFloatBuffer().put(floats, row * rowSize, rowSize);
        }
        out.position(out.position() + type.size * rowSize);
    }

    /** Describes an element's position in numpy's notation: the row's index, then the indices within the row. */
    public String place(int element) {
        StringBuilder place = new StringBuilder();
        int rest = element % rowSize;
        for (int i = shape.length - 1; i >= 0; i--) {
            place.insert(0, ", " + rest % shape[i]);
            rest /= (int) shape[i];
        }
        return element / rowSize + place.toString();
    }

    /** Formats a shape in Python's notation, such as (), (3,) or (1, 28, 28). */
    public static String tuple(long[] shape) {
        String inner = Arrays.toString(shape);
        return "(" + inner.substring(1, inner.length() - 1) + (shape.length == 1 ? ",)" : ")");
    }
}
