package ai.onnxruntime;

import java.nio.Buffer;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;

/** Replaces the AAR's class for tests on a JVM. It wraps a direct buffer without copying, and returns a copy. */
public class OnnxTensor implements OnnxValue {
    final Buffer data;
    private final long[] shape;

    OnnxTensor(Buffer data, long... shape) {
        this.data = data;
        this.shape = shape;
        OrtEnvironment.open++;
    }

    public static OnnxTensor createTensor(OrtEnvironment environment, FloatBuffer data, long[] shape)
            throws OrtException {
        return new OnnxTensor(data, shape);
    }

    public static OnnxTensor createTensor(OrtEnvironment environment, LongBuffer data, long[] shape)
            throws OrtException {
        return new OnnxTensor(data, shape);
    }

    public TensorInfo getInfo() {
        return new TensorInfo(shape);
    }

    public FloatBuffer getFloatBuffer() {
        return FloatBuffer.wrap(((FloatBuffer) data).array().clone());
    }

    @Override
    public void close() {
        OrtEnvironment.open--;
    }
}
