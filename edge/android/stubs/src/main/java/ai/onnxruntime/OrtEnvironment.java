package ai.onnxruntime;

/** Declares the parts of ONNX Runtime's AAR that we call. Used only for compiling. */
public class OrtEnvironment {
    public static OrtEnvironment getEnvironment() {
        throw new AssertionError("stub");
    }

    public OrtSession createSession(byte[] model, OrtSession.SessionOptions options) throws OrtException {
        throw new AssertionError("stub");
    }
}
