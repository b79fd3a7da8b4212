package ai.onnxruntime;

/** Declares the parts of ONNX Runtime's AAR that we call. Used only for compiling. */
public interface OnnxValue extends AutoCloseable {
    @Override
    void close();
}
