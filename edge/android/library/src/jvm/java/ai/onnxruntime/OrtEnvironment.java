package ai.onnxruntime;

/** Replaces the AAR's class for tests on a JVM. It counts the objects that have not been closed yet. */
public class OrtEnvironment {
    public static int open;

    public static OrtEnvironment getEnvironment() {
        return new OrtEnvironment();
    }

    public OrtSession createSession(byte[] model, OrtSession.SessionOptions options) throws OrtException {
        return new OrtSession(model, options);
    }
}
