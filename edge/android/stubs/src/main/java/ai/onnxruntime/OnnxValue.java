package ai.onnxruntime;

/** Of ONNX Runtime's AAR. Compile-only. */
public interface OnnxValue extends AutoCloseable {
    @Override
    void close();
}
