package ai.onnxruntime;

/** Declares what we call of ONNX Runtime's AAR. Used only for compiling. */
public class OrtException extends Exception {
    private static final long serialVersionUID = 1L;
}
