package ai.onnxruntime;

/** Declares what we call of ONNX Runtime's AAR. Used only for compiling. */
public class OrtEnvironment {
    public static OrtEnvironment getEnvironment() {
        throw new AssertionError("stub");
    }

    public OrtSession createSession(byte[] model, OrtSession.SessionOptions options) throws OrtException {
        throw new AssertionError("stub");
    }
}
