package org.sedge.edge.codec;

import org.sedge.edge.SedgeException.CodecError;

import java.util.Arrays;

/** Selects the elements of a delta to send (spec/training.md, T10). */
public final class Selection {
    private Selection() {}

    /**
     * Returns the elements of delta (n,) to send.
     *
     * @param rounds whether to round the values to multiples of a spacing, which is done for bf16 with error feedback
     */
    public static SparseVector select(float[] delta, double fraction, double threshold, boolean rounds)
            throws CodecError {
        int k = (int) Math.max(1, Math.rint(fraction * delta.length));
        if ((float) threshold > 0) {
            return largest(delta, k, (float) threshold);
        }
        if (fraction >= 1) {
            return new SparseVector(delta.length, null, delta.clone());
        }
        SparseVector chosen = largest(delta, k, Float.MIN_VALUE);
        return rounds ? nearestMultiples(chosen, Math.max(1, (int) (3L * k / 4))) : chosen;
    }

    /**
     * Returns the k elements with the largest magnitudes, leaving out magnitudes below {@code least}. Among equal
     * magnitudes, the lowest indices are taken.
     */
    private static SparseVector largest(float[] vector, int k, float least) throws CodecError {
        int[] magnitudes = new int[vector.length]; // the bits of the floats, which sort in the same order
        for (int i = 0; i < vector.length; i++) {
            magnitudes[i] = Float.floatToRawIntBits(Math.abs(vector[i]));
            Coding.requireFinite(vector[i], i, vector[i], " is not finite");
        }
        int[] sorted = magnitudes.clone();
        Arrays.sort(sorted);
        int bound = Math.max(sorted[sorted.length - k], Float.floatToRawIntBits(least));
        int above = 0;
        int equal = 0;
        for (int magnitude : magnitudes) {
            above += magnitude > bound ? 1 : 0;
            equal += magnitude == bound ? 1 : 0;
        }
        int ties = Math.min(equal, k - above);
        int[] indices = new int[above + ties];
        float[] values = new float[indices.length];
        for (int i = 0, done = 0; i < vector.length; i++) {
            if (magnitudes[i] > bound || (magnitudes[i] == bound && ties-- > 0)) {
                indices[done] = i;
                values[done++] = vector[i];
            }
        }
        return new SparseVector(vector.length, indices.length == vector.length ? null : indices, values);
    }

    /**
     * Rounds the values to multiples of a spacing, and leaves out values that become 0. The spacing is derived from the
     * magnitude with this rank, counted from the largest.
     */
    private static SparseVector nearestMultiples(SparseVector chosen, int rank) {
        float[] sorted = new float[chosen.values.length];
        for (int i = 0; i < sorted.length; i++) {
            sorted[i] = Math.abs(chosen.values[i]);
        }
        Arrays.sort(sorted);
        if (sorted.length < rank) {
            return chosen;
        }
        double least = sorted[sorted.length - rank];
        if (!(least > 1e-30 && least < 1e30)) {
            return chosen;
        }
        int exponent = Math.getExponent(2 * least) + 1;
        float step = (float) Math.scalb(Math.floor(8 * Math.scalb(2 * least, -exponent)), exponent - 3);
        int[] indices = new int[sorted.length];
        float[] values = new float[sorted.length];
        int done = 0;
        for (int i = 0; i < sorted.length; i++) {
            float count = (float) (long) (chosen.values[i] / step + Math.copySign(0.5f, chosen.values[i]));
            if (count != 0) {
                indices[done] = chosen.at(i);
                values[done++] = count * step;
            }
        }
        boolean whole = done == chosen.size;
        return new SparseVector(chosen.size, whole ? null : Arrays.copyOf(indices, done), Arrays.copyOf(values, done));
    }
}
