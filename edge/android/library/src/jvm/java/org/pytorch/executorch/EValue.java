package org.pytorch.executorch;

/** The AAR's class of this name: a tensor, or nothing. */
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
