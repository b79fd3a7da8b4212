package ai.onnxruntime;

/** The AAR's class of this name. */
public class TensorInfo {
    private final long[] shape;

    TensorInfo(long[] shape) {
        this.shape = shape;
    }

    public long[] getShape() {
        return shape;
    }
}
