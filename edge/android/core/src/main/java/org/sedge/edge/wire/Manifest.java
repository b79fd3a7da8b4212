package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.wire.Schema.Field;

import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Map;

/** A blob's size and hash, and a digest of each of its chunks (WIRE.md, section 6). */
public final class Manifest extends Struct<Manifest> {
    public static final int DIGEST_BYTES = 16;
    public static final int MIN_CHUNK_BYTES = 1 << 12;
    public static final int MAX_CHUNK_BYTES = 1 << 18;
    public static final int MAX_CHUNKS = 4096;
    /** The maximum number of bytes that MQTT, the topic and our header add to a chunk's packet. */
    private static final int PACKET_OVERHEAD = Frame.HEADER_BYTES + 4096;

    /** Reads a manifest and checks its consistency. */
    public static final Schema<Manifest> SCHEMA = new Schema<Manifest>(false) {
        @Override
        protected Manifest make(Object[] values) {
            return new Manifest(values);
        }
    };
    private static final Field<Manifest, byte[]> SHA256 = SCHEMA.required("sha256", Type.HASH);
    private static final Field<Manifest, Long> SIZE =
            SCHEMA.required("size", Type.integer(1, (long) MAX_CHUNKS * MAX_CHUNK_BYTES));
    private static final Field<Manifest, Long> CHUNK_BYTES =
            SCHEMA.required("chunk_bytes", Type.integer(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES));
    private static final Field<Manifest, byte[]> DIGESTS =
            SCHEMA.required("digests", Type.bytes(16, MAX_CHUNKS * DIGEST_BYTES));

    /** Reads a manifest from a bundle's JSON. */
    static final Type<Manifest> IN_JSON = new Type<Manifest>() {
        @Override
        public Manifest read(Object value) {
            Map<Object, Object> found = new HashMap<>(asMap(value));
            found.put("sha256", BASE64.read(found.get("sha256")));
            found.put("digests", BASE64.read(found.get("digests")));
            return SCHEMA.read(found);
        }
    };

    public final byte[] sha256;
    public final int size;
    public final int chunkBytes;
    /** The number of chunks. */
    public final int count;
    /** The transfer id: the first 16 bytes of the manifest's own hash. */
    public final byte[] transfer;
    private final byte[] digests;

    private Manifest(Object[] values) {
        super(SCHEMA, values);
        sha256 = SHA256.in(values);
        size = SIZE.in(values).intValue();
        chunkBytes = CHUNK_BYTES.in(values).intValue();
        digests = DIGESTS.in(values);
        count = (size + chunkBytes - 1) / chunkBytes;
        if (Integer.bitCount(chunkBytes) != 1) {
            throw new IllegalArgumentException("chunk_bytes " + chunkBytes + " is not a power of two");
        }
        if (digests.length != count * DIGEST_BYTES) {
            throw new IllegalArgumentException(digests.length + " digest bytes for " + count + " chunks");
        }
        transfer = Arrays.copyOf(Digests.sha256(encode()), 16);
    }

    /**
     * Returns the chunk size for a blob of {@code size} bytes. It is {@code wanted}, or larger if 4096 such chunks
     * could not hold the blob.
     */
    public static int chunkSize(int size, int wanted) {
        int chunk = wanted;
        while (size > (long) MAX_CHUNKS * chunk) {
            chunk *= 2;
        }
        return chunk;
    }

    /**
     * Returns the largest chunk size whose MQTT packet has at most {@code maxPacket} bytes, found by halving
     * {@code wanted}. It is never below the protocol's minimum.
     */
    public static int fittingChunk(int maxPacket, int wanted) {
        int chunk = wanted;
        while (chunk > Math.max(maxPacket - PACKET_OVERHEAD, MIN_CHUNK_BYTES)) {
            chunk /= 2;
        }
        return chunk;
    }

    /**
     * Creates the manifest of a non-empty blob. Chunks are larger than {@code chunkBytes} if 4096 such chunks could not
     * hold the blob.
     */
    public static Manifest describe(byte[] blob, int chunkBytes) {
        int chunk = chunkSize(blob.length, chunkBytes);
        int count = (blob.length + chunk - 1) / chunk;
        byte[] digests = new byte[count * DIGEST_BYTES];
        for (int i = 0; i < count; i++) {
            byte[] part = Arrays.copyOfRange(blob, i * chunk, Math.min((i + 1) * chunk, blob.length));
            System.arraycopy(Digests.sha256(part), 0, digests, i * DIGEST_BYTES, DIGEST_BYTES);
        }
        return new Manifest(new Object[] {Digests.sha256(blob), (long) blob.length, (long) chunk, digests});
    }

    /** Returns the offset of a chunk in bytes. */
    public int offset(int index) {
        return index * chunkBytes;
    }

    /** Returns the length of a chunk in bytes. */
    public int length(int index) {
        return Math.min(chunkBytes, size - offset(index));
    }

    /** Returns true if the data matches the digest of the chunk with this index. */
    public boolean matches(int index, byte[] data) {
        byte[] digest = Arrays.copyOf(Digests.sha256(data), DIGEST_BYTES);
        return Arrays.equals(digest, Arrays.copyOfRange(digests, index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES));
    }

    /** @throws FrameError unless the data matches the digest of the chunk with this index */
    public void check(long index, byte[] data) throws FrameError {
        if (index >= count) {
            throw new FrameError("chunk " + index + " of a blob of " + count + " chunks");
        }
        if (data.length != length((int) index)) {
            throw new FrameError("chunk " + index + ": " + data.length + " bytes, expected " + length((int) index));
        }
        if (!matches((int) index, data)) {
            throw new FrameError("chunk " + index + ": the digest does not match");
        }
    }

    /** Encodes a set of chunks as a bitmap. */
    public static byte[] toBitmap(BitSet chunks, int count) {
        return Arrays.copyOf(chunks.toByteArray(), (count + 7) / 8);
    }

    /**
     * Decodes the set of chunks in a bitmap.
     *
     * @throws FrameError for a wrong length or bits past the end
     */
    public static BitSet fromBitmap(byte[] bitmap, int count) throws FrameError {
        BitSet chunks = BitSet.valueOf(bitmap);
        if (bitmap.length != (count + 7) / 8) {
            throw new FrameError("bitmap of " + bitmap.length + " bytes for " + count + " chunks");
        }
        if (chunks.length() > count) {
            throw new FrameError("bitmap has bits past its " + count + " chunks");
        }
        return chunks;
    }
}
