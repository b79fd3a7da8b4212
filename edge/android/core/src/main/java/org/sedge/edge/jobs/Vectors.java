package org.sedge.edge.jobs;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.wire.Hex;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;

/** Reads and writes vectors (n,), which are stored as blobs of little-endian float32. */
public final class Vectors {
    private Vectors() {}

    /** Reads a vector (n,) from a blob. */
    public static float[] read(Blobs blobs, byte[] name, int size) throws StorageError, CodecError {
        byte[] data = blobs.read(name);
        if (data.length != 4L * size) { // a malformed order may name any blob as its base version
            throw new CodecError("vector " + Hex.encode(name) + ": " + data.length + " bytes, expected float32 ("
                    + size + ",)");
        }
        return floats(data);
    }

    /** Decodes a vector that was encoded with {@link #bytes}. */
    public static float[] floats(byte[] data) {
        float[] found = new float[data.length / 4];
        ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(found);
        return found;
    }

    /** Encodes a vector (n,) as little-endian float32. */
    public static byte[] bytes(float[] theta) {
        ByteBuffer out = ByteBuffer.allocate(4 * theta.length).order(ByteOrder.LITTLE_ENDIAN);
        out.asFloatBuffer().put(theta);
        return out.array();
    }

    /** Encodes several vectors (n,), each as in {@link #bytes}. */
    public static List<byte[]> coded(List<float[]> vectors) {
        List<byte[]> coded = new ArrayList<>();
        for (float[] vector : vectors) {
            coded.add(bytes(vector));
        }
        return coded;
    }

    /** Decodes vectors that were encoded with {@link #coded}. */
    public static List<float[]> decoded(List<byte[]> coded) {
        List<float[]> vectors = new ArrayList<>();
        for (byte[] data : coded) {
            vectors.add(floats(data));
        }
        return vectors;
    }
}
