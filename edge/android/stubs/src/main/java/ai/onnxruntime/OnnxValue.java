package ai.onnxruntime;

/** Declares what we call of ONNX Runtime's AAR. Used only for compiling. */
public interface OnnxValue extends AutoCloseable {
    @Override
    void close();
}
