package ai.onnxruntime;

/** The AAR's class of this name. */
public interface OnnxValue extends AutoCloseable {
    @Override
    void close();
}
