package ai.onnxruntime;

/** Replaces the AAR's class for tests on a JVM. */
public class OrtException extends Exception {
    private static final long serialVersionUID = 1L;

    public OrtException(String message) {
        super(message);
    }
}
