package ai.onnxruntime;

/** The AAR's class of this name. */
public class OrtException extends Exception {
    private static final long serialVersionUID = 1L;

    public OrtException(String message) {
        super(message);
    }
}
