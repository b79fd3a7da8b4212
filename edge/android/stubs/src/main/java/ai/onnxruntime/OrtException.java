package ai.onnxruntime;

/** Of ONNX Runtime's AAR. Compile-only. */
public class OrtException extends Exception {
    private static final long serialVersionUID = 1L;
}
