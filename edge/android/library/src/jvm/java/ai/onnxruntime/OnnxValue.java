package ai.onnxruntime;

/** Replaces the AAR's class for tests on a JVM. */
public interface OnnxValue extends AutoCloseable {
    @Override
    void close();
}
