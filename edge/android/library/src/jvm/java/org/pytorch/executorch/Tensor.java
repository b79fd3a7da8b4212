package org.pytorch.executorch;

import org.sedge.edge.backends.Tensor.Type;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;

/**
 * Replaces the AAR's class for tests on a JVM. It accepts only direct buffers that are exactly as large as the tensor.
 */
public class Tensor {
    final org.sedge.edge.backends.Tensor content;

    Tensor(org.sedge.edge.backends.Tensor content) {
        this.content = content;
    }

    public static Tensor fromBlob(FloatBuffer data, long[] shape) {
        Tensor tensor = made(Type.FLOAT32, data, shape);
        tensor.content.data().asFloatBuffer().put(data.duplicate());
        return tensor;
    }

    public static Tensor fromBlob(LongBuffer data, long[] shape) {
        Tensor tensor = made(Type.INT64, data, shape);
        tensor.content.data().asLongBuffer().put(data.duplicate());
        return tensor;
    }

    public static Tensor fromBlob(IntBuffer data, long[] shape) {
        Tensor tensor = made(Type.INT32, data, shape);
        tensor.content.data().asIntBuffer().put(data.duplicate());
        return tensor;
    }

    public static Tensor fromBlobUnsigned(ByteBuffer data, long[] shape) {
        Tensor tensor = made(Type.UINT8, data, shape);
        tensor.content.data().put(data.duplicate());
        return tensor;
    }

    private static Tensor made(Type type, Buffer data, long[] shape) {
        org.sedge.edge.backends.Tensor content = org.sedge.edge.backends.Tensor.zeros(type, shape);
        if (!data.isDirect() || data.capacity() * type.size != content.data().capacity()) {
            throw new IllegalArgumentException("Inconsistent data capacity");
        }
        return new Tensor(content);
    }

    public long[] shape() {
        return content.shape();
    }

    public float[] getDataAsFloatArray() {
        FloatBuffer data = content.data().asFloatBuffer();
        float[] copy = new float[data.remaining()];
        data.get(copy);
        return copy;
    }
}
