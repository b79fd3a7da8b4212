package org.sedge.edge.codec;

import org.sedge.edge.SedgeException.CodecError;

import java.io.ByteArrayOutputStream;
import java.util.zip.DataFormatException;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/** Compressions of a coded vector's sections, in the order of their codes; the next, zstd, is not announced. */
public enum Compression {
    NONE,
    ZLIB;

    /** The bytes compressed, or unchanged if compression does not make them shorter. */
    byte[] shrink(byte[] data) {
        byte[] packed = this == NONE || data.length == 0 ? data : deflated(data);
        return packed.length < data.length ? packed : data;
    }

    /** The bytes that {@link #shrink} compressed, never more than {@code limit}. */
    byte[] grow(byte[] data, int limit) throws CodecError {
        if (this == ZLIB) {
            return inflate(data, limit);
        }
        if (data.length > limit) {
            throw new CodecError("section: " + data.length + " bytes, the limit is " + limit);
        }
        return data;
    }

    private static byte[] deflated(byte[] data) {
        Deflater deflater = new Deflater();
        deflater.setStrategy(Deflater.FILTERED); // sections have uneven byte frequencies and hardly any repeated strings
        deflater.setInput(data);
        deflater.finish();
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        byte[] buffer = new byte[8192];
        while (!deflater.finished()) {
            out.write(buffer, 0, deflater.deflate(buffer));
        }
        deflater.end();
        return out.toByteArray();
    }

    /** The one zlib stream in the bytes, at most {@code limit} bytes long. */
    public static byte[] inflate(byte[] data, int limit) throws CodecError {
        Inflater inflater = new Inflater();
        try {
            inflater.setInput(data);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            byte[] buffer = new byte[8192];
            while (!inflater.finished()) {
                int count = inflater.inflate(buffer);
                out.write(buffer, 0, count);
                if (out.size() > limit) {
                    throw new CodecError("zlib: over " + limit + " bytes, the limit");
                }
                if (count == 0 && !inflater.finished() && (inflater.needsInput() || inflater.needsDictionary())) {
                    throw new CodecError("zlib: the stream is truncated, or needs a dictionary");
                }
            }
            if (inflater.getRemaining() > 0) {
                throw new CodecError("zlib: " + inflater.getRemaining() + " bytes after the end of the stream");
            }
            return out.toByteArray();
        } catch (DataFormatException error) {
            throw new CodecError("zlib: " + error.getMessage(), error);
        } finally {
            inflater.end();
        }
    }
}
