package ai.onnxruntime;

/** Replaces the AAR's class for tests on a JVM. */
public class TensorInfo {
    private final long[] shape;

    TensorInfo(long[] shape) {
        this.shape = shape;
    }

    public long[] getShape() {
        return shape;
    }
}
