package org.pytorch.executorch;

/** Replaces the AAR's class for tests on a JVM: a tensor, or nothing. */
public class EValue {
    private final Tensor tensor;

    private EValue(Tensor tensor) {
        this.tensor = tensor;
    }

    public static EValue from(Tensor tensor) {
        return new EValue(tensor);
    }

    public Tensor toTensor() {
        return tensor;
    }
}
