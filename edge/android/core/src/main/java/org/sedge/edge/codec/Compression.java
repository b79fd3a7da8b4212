package org.sedge.edge.codec;

import org.sedge.edge.SedgeException.CodecError;

import java.io.ByteArrayOutputStream;
import java.util.zip.DataFormatException;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/**
 * The compression methods for a coded vector's sections, in the order of their codes. The next code in the protocol
 * stands for zstd, which is not supported here, so the device does not announce it.
 */
public enum Compression {
    NONE,
    ZLIB;

    /** Compresses the data. Returns the data unchanged if compression would not make it shorter. */
    byte[] shrink(byte[] data) {
        byte[] packed = this == NONE || data.length == 0 ? data : deflated(data);
        return packed.length < data.length ? packed : data;
    }

    /** Decompresses the output of {@link #shrink}. Never returns more than {@code limit} bytes. */
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
        // Suits sections: their byte frequencies are uneven, but strings are hardly ever repeated.
        deflater.setStrategy(Deflater.FILTERED);
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

    /** Decompresses the data, which must be exactly one zlib stream of at most {@code limit} decompressed bytes. */
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
                    throw new CodecError("zlib: more than the limit of " + limit + " bytes");
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
