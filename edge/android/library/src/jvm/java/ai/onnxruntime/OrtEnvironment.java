package ai.onnxruntime;

/** The AAR's class of this name; it counts what has to be closed. */
public class OrtEnvironment {
    public static int open;

    public static OrtEnvironment getEnvironment() {
        return new OrtEnvironment();
    }

    public OrtSession createSession(byte[] model, OrtSession.SessionOptions options) throws OrtException {
        return new OrtSession(model, options);
    }
}
