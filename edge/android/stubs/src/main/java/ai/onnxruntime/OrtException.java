package ai.onnxruntime;

/** Declares the parts of ONNX Runtime's AAR that we call. Used only for compiling. */
public class OrtException extends Exception {
    private static final long serialVersionUID = 1L;
}
