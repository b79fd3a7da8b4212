package org.sedge.edge.codec;

import org.sedge.edge.SedgeException.CodecError;

import java.io.ByteArrayOutputStream;

/**
 * Encodes and decodes which positions a coded vector keeps, in the mask forms 0 to 3 (spec/coded-vector.md, Mask
 * section).
 */
final class Masks {
    static final int EMPTY = 0;
    static final int DENSE = 1;
    private static final int BITMAP = 2;
    private static final int GAPS = 3;
    private static final int MAX_VARINT_BYTES = 4;

    /** A mask section: its form, its compression and its bytes. */
    static final class Section {
        final int form;
        final Compression compression;
        final byte[] data;

        Section(int form, Compression compression, byte[] data) {
            this.form = form;
            this.compression = compression;
            this.data = data;
        }
    }

    private Masks() {}

    /** Encodes 0 < k < n sorted positions in the form that takes the fewest bytes. */
    static Section encode(int[] kept, int n, Compression compression) {
        int[] rarer = 2L * kept.length <= n ? kept : leftOut(kept, n);
        Section best = null;
        for (Compression tried : compression == Compression.NONE ? new Compression[] {Compression.NONE}
                : new Compression[] {Compression.NONE, compression}) {
            if (8L * rarer.length <= n) {
                best = shorter(best, new Section(GAPS, tried, tried.shrink(varints(rarer))));
            }
            if (16L * rarer.length > n) {
                best = shorter(best, new Section(BITMAP, tried, tried.shrink(bitmap(kept, n))));
            }
        }
        return best;
    }

    private static Section shorter(Section best, Section other) {
        return best == null || other.data.length < best.data.length ? other : best;
    }

    /** Decodes a mask section into k sorted positions below n, with 0 < k < n. */
    static int[] decode(int form, Compression compression, byte[] data, int n, int k) throws CodecError {
        if (form == BITMAP) {
            return ones(compression.grow(data, (n + 7) / 8), n, k);
        }
        if (form != GAPS) {
            throw new CodecError("mask: form " + form + " does not fit k=" + k + ", n=" + n);
        }
        int m = Math.min(k, n - k);
        int[] found = fromVarints(compression.grow(data, (int) Math.min((long) MAX_VARINT_BYTES * m, n)), m, n);
        return 2L * k <= n ? found : leftOut(found, n);
    }

    private static int[] leftOut(int[] positions, int n) {
        int[] others = new int[n - positions.length];
        int done = 0;
        for (int p = 0, next = 0; p < n; p++) {
            if (next < positions.length && positions[next] == p) {
                next++;
            } else {
                others[done++] = p;
            }
        }
        return others;
    }

    private static byte[] bitmap(int[] positions, int n) {
        byte[] bits = new byte[(n + 7) / 8];
        for (int p : positions) {
            bits[p >> 3] |= (byte) (1 << (p & 7));
        }
        return bits;
    }

    private static int[] ones(byte[] bits, int n, int k) throws CodecError {
        int count = 0;
        for (byte b : bits) {
            count += Integer.bitCount(b & 0xff);
        }
        boolean padded = n % 8 == 0 || bits.length == 0 || (bits[bits.length - 1] & 0xff) >> n % 8 == 0;
        if (bits.length != (n + 7) / 8 || count != k || !padded) {
            throw new CodecError("mask: " + bits.length + " bytes with " + count + " ones, expected a bitmap of n=" + n
                    + " with " + k);
        }
        int[] found = new int[k];
        for (int p = 0, done = 0; p < n; p++) {
            if ((bits[p >> 3] >> (p & 7) & 1) == 1) {
                found[done++] = p;
            }
        }
        return found;
    }

    private static byte[] varints(int[] positions) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        int last = -1;
        for (int p : positions) {
            int gap = p - last - 1;
            last = p;
            for (; gap > 0x7f; gap >>>= 7) {
                out.write(gap & 0x7f | 0x80);
            }
            out.write(gap);
        }
        return out.toByteArray();
    }

    private static int[] fromVarints(byte[] data, int m, int n) throws CodecError {
        int[] found = new int[m];
        int at = 0;
        long last = -1;
        for (int i = 0; i < m; i++) {
            long gap = 0;
            int from = at;
            do {
                if (at >= data.length || at - from >= MAX_VARINT_BYTES) {
                    throw new CodecError("mask.gap[" + i + "]: cut off, or longer than " + MAX_VARINT_BYTES + " bytes");
                }
                gap |= (data[at] & 0x7fL) << 7 * (at - from);
            } while (data[at++] < 0);
            last += gap + 1;
            if ((data[at - 1] == 0 && at - from > 1) || last >= n) {
                throw new CodecError("mask.gap[" + i + "]: not the shortest varint, or a position past n=" + n);
            }
            found[i] = (int) last;
        }
        if (at != data.length) {
            throw new CodecError("mask: " + (data.length - at) + " bytes after the last of " + m + " varints");
        }
        return found;
    }
}
