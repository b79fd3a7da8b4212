package org.sedge.edge.codec;

import org.sedge.edge.SedgeException.CodecError;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/**
 * zstd by the library zstd-jni, where it is on the class path and its native part loads.
 *
 * <p>The library trusts a frame more than the protocol does, so header and blocks are checked here first.
 */
final class Zstd {
    private static final int MAX_WINDOW_BYTES = 8 << 20;
    private static final int LEVEL = 1;
    private static final Method COMPRESS;
    private static final Method DECOMPRESS;

    static {
        Method compress = null;
        Method decompress = null;
        try {
            Class<?> library = Class.forName("com.github.luben.zstd.Zstd");
            compress = library.getMethod("compress", byte[].class, int.class);
            decompress = library.getMethod("decompress", byte[].class, int.class);
            compress.invoke(null, new byte[1], LEVEL);
        } catch (ReflectiveOperationException | LinkageError error) {
            compress = null; // not there, or not for this machine: zstd is not announced
        }
        COMPRESS = compress;
        DECOMPRESS = decompress;
    }

    private Zstd() {}

    static boolean available() {
        return COMPRESS != null;
    }

    static byte[] compress(byte[] data) {
        try {
            return (byte[]) COMPRESS.invoke(null, data, LEVEL);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The one frame in the bytes, which must state its size. */
    static byte[] decompress(byte[] data, int limit) throws CodecError {
        if (!available()) {
            throw new CodecError("zstd: not announced by this device");
        }
        int size = statedSize(data, limit);
        try {
            byte[] result = (byte[]) DECOMPRESS.invoke(null, data, size);
            if (result.length != size) {
                throw new CodecError("zstd: " + result.length + " bytes, the header states " + size);
            }
            return result;
        } catch (InvocationTargetException error) {
            throw new CodecError("zstd: " + error.getCause().getMessage(), error);
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The content size in the header of a frame that fills the bytes (RFC 8878, 3.1.1). */
    private static int statedSize(byte[] data, int limit) throws CodecError {
        if (data.length < 6 || little(data, 0, 4) != 0xfd2fb528L) {
            throw new CodecError("zstd: not a frame");
        }
        int descriptor = data[4];
        boolean single = (descriptor & 0x20) != 0;
        int sizeFlag = descriptor >> 6 & 3;
        int sizeBytes = sizeFlag == 0 ? (single ? 1 : 0) : 1 << sizeFlag;
        if (sizeBytes == 0 || (descriptor & 0x0b) != 0) { // a reserved bit, or a dictionary
            throw new CodecError("zstd: a frame without its size, or one that needs a dictionary");
        }
        int at = single ? 5 : 6;
        long size = little(data, at, sizeBytes) + (sizeBytes == 2 ? 256 : 0);
        if (size <= 0 || size > limit) {
            throw new CodecError("zstd: " + size + " bytes, the limit is " + limit);
        }
        long window = single ? size : (1024L << (data[5] >> 3 & 31)) * (8 + (data[5] & 7)) / 8;
        if (window > Math.max(MAX_WINDOW_BYTES, size)) {
            throw new CodecError("zstd: window " + window + ", the limit is " + MAX_WINDOW_BYTES);
        }
        at += sizeBytes;
        long block;
        do {
            block = little(data, at, 3);
            at += 3 + (int) ((block >> 1 & 3) == 1 ? 1 : block >> 3);
        } while ((block & 1) == 0);
        if (at + ((descriptor & 4) != 0 ? 4 : 0) != data.length) {
            throw new CodecError("zstd: bytes after the end of the frame, or too few");
        }
        return (int) size;
    }

    private static long little(byte[] data, int at, int count) throws CodecError {
        if (at + count > data.length) {
            throw new CodecError("zstd: the frame is truncated");
        }
        long value = 0;
        for (int i = count - 1; i >= 0; i--) {
            value = value << 8 | data[at + i] & 0xff;
        }
        return value;
    }
}
