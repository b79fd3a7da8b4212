package ai.onnxruntime;

import java.nio.FloatBuffer;
import java.nio.LongBuffer;

/** Declares the parts of ONNX Runtime's AAR that we call. Used only for compiling. */
public class OnnxTensor implements OnnxValue {
    public static OnnxTensor createTensor(OrtEnvironment environment, FloatBuffer data, long[] shape)
            throws OrtException {
        throw new AssertionError("stub");
    }

    public static OnnxTensor createTensor(OrtEnvironment environment, LongBuffer data, long[] shape)
            throws OrtException {
        throw new AssertionError("stub");
    }

    public TensorInfo getInfo() {
        throw new AssertionError("stub");
    }

    public FloatBuffer getFloatBuffer() {
        throw new AssertionError("stub");
    }

    @Override
    public void close() {
        throw new AssertionError("stub");
    }
}
