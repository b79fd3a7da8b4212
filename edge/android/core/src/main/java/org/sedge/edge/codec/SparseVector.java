package org.sedge.edge.codec;

import org.sedge.edge.SedgeException.CodecError;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * Values at sorted positions of a vector of n float32 elements, with the conversion to and from bytes
 * (spec/coded-vector.md).
 */
public final class SparseVector {
    private static final int VERSION = 1;
    private static final int HEAD_BYTES = 12;
    private static final int MAX_PARAMETERS = 1 << 28;
    /** With fewer values than this, sorting by exponent saves nothing, so it is not done. */
    private static final int MIN_ORDERED = 512;

    /** The number n of elements in the vector. */
    public final int size;
    /** The positions of the values; null if there is a value at each of the n positions. */
    public final int[] indices;
    public final float[] values;

    /** Wraps the arrays without copying them. */
    public SparseVector(int size, int[] indices, float[] values) {
        this.size = size;
        this.indices = indices;
        this.values = values;
    }

    /** Returns the position of the i-th value. */
    public int at(int i) {
        return indices == null ? i : indices[i];
    }

    /** Adds the values to the vector theta (n,). */
    public void addTo(float[] theta) {
        for (int i = 0; i < values.length; i++) {
            theta[at(i)] += values[i];
        }
    }

    /** Writes the values into the vector theta (n,). */
    public void writeTo(float[] theta) {
        for (int i = 0; i < values.length; i++) {
            theta[at(i)] = values[i];
        }
    }

    /**
     * Encodes this vector.
     *
     * @throws CodecError if a value would not be finite at the receiver
     */
    public byte[] encode(Coding coding, Compression compression) throws CodecError {
        coding.decoded(values);
        int k = values.length;
        Masks.Section mask = k == 0 || k == size
                ? new Masks.Section(k == 0 ? Masks.EMPTY : Masks.DENSE, Compression.NONE, new byte[0])
                : Masks.encode(indices, size, compression);
        byte[][] planes = coding.toPlanes(values);
        boolean ordered = compression != Compression.NONE && coding.orders() && k >= MIN_ORDERED;
        int last = planes.length - 1;
        if (ordered) {
            planes[last - 1] = moved(planes[last - 1], planes[last], true);
        }
        ByteArrayOutputStream sections = new ByteArrayOutputStream();
        ByteBuffer head = ByteBuffer.allocate(HEAD_BYTES + 4 * (1 + planes.length)).order(ByteOrder.LITTLE_ENDIAN);
        head.put((byte) VERSION).put((byte) (mask.form | mask.compression.ordinal() << 4));
        head.put((byte) (coding.ordinal() | compression.ordinal() << 4)).put((byte) (ordered ? 1 : 0));
        head.putInt(size).putInt(k).putInt(mask.data.length);
        sections.write(mask.data, 0, mask.data.length);
        for (byte[] plane : planes) {
            byte[] packed = compression.shrink(plane);
            head.putInt(packed.length);
            sections.write(packed, 0, packed.length);
        }
        return ByteBuffer.allocate(head.capacity() + sections.size()).put(head.array()).put(sections.toByteArray())
                .array();
    }

    /**
     * Decodes a vector.
     *
     * @param expected the expected number n of elements
     * @throws CodecError if the bytes break a rule; the message names the first rule broken
     */
    public static SparseVector decode(byte[] data, int expected) throws CodecError {
        if (data.length > 0 && data[0] != VERSION) {
            throw new CodecError("coded vector: version " + data[0] + ", this codec reads " + VERSION);
        }
        require(data.length >= HEAD_BYTES, "it has " + data.length + " bytes, fewer than its header");
        ByteBuffer in = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
        int n = in.getInt(4);
        int k = in.getInt(8);
        require(n == expected && n > 0 && n <= MAX_PARAMETERS, "n=" + n + ", expected " + expected);
        require(k >= 0 && k <= n, "k=" + k + " is not within n=" + n);
        int codings = Coding.values().length;
        int compressions = Compression.values().length;
        int valueTag = data[2] & 0xff;
        int maskTag = data[1] & 0xff;
        require((valueTag & 15) < codings && valueTag >> 4 < compressions && maskTag >> 4 < compressions,
                "unknown tag, mask " + maskTag + ", values " + valueTag);
        Coding coding = Coding.values()[valueTag & 15];
        require(data[3] == 0 || (data[3] == 1 && coding.orders()), "order " + data[3]);
        byte[][] sections = sections(in, coding, n, k);
        Compression compression = Compression.values()[valueTag >> 4];
        byte[][] planes = new byte[coding.planes][];
        for (int plane = 0; plane < coding.planes; plane++) {
            int raw = coding.planeBytes(plane, k);
            byte[] section = sections[plane + 1];
            planes[plane] = section.length == raw ? section : compression.grow(section, raw);
            require(planes[plane].length == raw, "plane " + plane + " has " + planes[plane].length + " bytes");
        }
        int last = planes.length - 1;
        if (data[3] == 1) {
            planes[last - 1] = moved(planes[last - 1], planes[last], false);
        }
        float[] values = coding.fromPlanes(planes, k);
        if (k == 0 || k == n) {
            require(maskTag == (k == 0 ? Masks.EMPTY : Masks.DENSE), "mask tag " + maskTag + " does not fit k=" + k);
            return new SparseVector(n, k == n ? null : new int[0], values);
        }
        Compression of = Compression.values()[maskTag >> 4];
        return new SparseVector(n, Masks.decode(maskTag & 15, of, sections[0], n, k), values);
    }

    /** Splits the bytes into the mask section and one section for each plane. None may be longer than n and k allow. */
    private static byte[][] sections(ByteBuffer in, Coding coding, int n, int k) throws CodecError {
        int at = HEAD_BYTES + 4 * (1 + coding.planes);
        require(in.capacity() >= at, "it has " + in.capacity() + " bytes, fewer than its header");
        byte[][] found = new byte[1 + coding.planes][];
        for (int i = 0; i < found.length; i++) {
            int length = in.getInt(HEAD_BYTES + 4 * i);
            int limit = i > 0 ? coding.planeBytes(i - 1, k) : k == 0 || k == n ? 0 : (n + 7) / 8;
            require(length >= 0 && length <= limit && length <= in.capacity() - at,
                    "section " + i + " has " + length + " bytes, the limit is " + limit);
            found[i] = Arrays.copyOfRange(in.array(), at, at + length);
            at += length;
        }
        require(at == in.capacity(), "it has " + in.capacity() + " bytes, its header says " + at);
        return found;
    }

    /**
     * Sorts a plane's values by the exponents in the highest plane or, if {@code sort} is false, restores its original
     * order. Equal exponents keep their order.
     */
    private static byte[] moved(byte[] plane, byte[] highest, boolean sort) {
        int[] next = new int[129];
        for (byte b : highest) {
            next[(b & 0x7f) + 1]++;
        }
        for (int i = 1; i < next.length; i++) {
            next[i] += next[i - 1];
        }
        byte[] found = new byte[plane.length];
        for (int i = 0; i < plane.length; i++) {
            int place = next[highest[i] & 0x7f]++;
            found[sort ? place : i] = plane[sort ? i : place];
        }
        return found;
    }

    private static void require(boolean good, String otherwise) throws CodecError {
        if (!good) {
            throw new CodecError("coded vector: " + otherwise);
        }
    }
}
