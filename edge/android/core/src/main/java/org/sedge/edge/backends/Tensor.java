package org.sedge.edge.backends;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** A dense tensor in row-major order, stored in a direct buffer of little-endian elements. */
public final class Tensor {
    /** The element types that a bundle's programs use. */
    public enum Type {
        FLOAT32(4),
        INT64(8),
        INT32(4),
        UINT32(4),
        UINT8(1),
        BOOL(1);

        /** The size of one element in bytes. */
        public final int size;

        Type(int size) {
            this.size = size;
        }
    }

    private final Type type;
    private final long[] shape;
    private final ByteBuffer data;

    /**
     * Wraps a buffer without copying it.
     *
     * @throws IllegalArgumentException if the buffer is not direct, or its size does not match the shape
     */
    public Tensor(Type type, long[] shape, ByteBuffer data) {
        long elements = 1;
        for (long size : shape) {
            elements = Math.multiplyExact(elements, size);
        }
        if (!data.isDirect()) {
            throw new IllegalArgumentException("a tensor needs a direct buffer");
        }
        if (data.remaining() != elements * type.size) {
            throw new IllegalArgumentException(
                    "a tensor of " + elements + " elements of " + type + " needs " + elements * type.size
                            + " bytes, not " + data.remaining());
        }
        this.type = type;
        this.shape = shape.clone();
        this.data = data.slice().order(ByteOrder.LITTLE_ENDIAN);
    }

    /** Creates a tensor of zeros. */
    public static Tensor zeros(Type type, long... shape) {
        long elements = 1;
        for (long size : shape) {
            elements = Math.multiplyExact(elements, size);
        }
        int bytes = Math.toIntExact(elements * type.size);
        return new Tensor(type, shape, ByteBuffer.allocateDirect(bytes));
    }

    public Type type() {
        return type;
    }

    public long[] shape() {
        return shape.clone();
    }

    /**
     * Returns a view of the little-endian elements, from position 0 to the limit. The bytes are shared; the position is
     * not.
     */
    public ByteBuffer data() {
        return data.duplicate().order(ByteOrder.LITTLE_ENDIAN);
    }
}
