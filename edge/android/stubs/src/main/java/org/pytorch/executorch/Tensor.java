package org.pytorch.executorch;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;

/** Declares the parts of ExecuTorch's AAR that we call. Used only for compiling. */
public abstract class Tensor {
    public static Tensor fromBlob(FloatBuffer data, long[] shape) {
        throw new AssertionError("stub");
    }

    public static Tensor fromBlob(LongBuffer data, long[] shape) {
        throw new AssertionError("stub");
    }

    public static Tensor fromBlob(IntBuffer data, long[] shape) {
        throw new AssertionError("stub");
    }

    public static Tensor fromBlobUnsigned(ByteBuffer data, long[] shape) {
        throw new AssertionError("stub");
    }

    public long[] shape() {
        throw new AssertionError("stub");
    }

    public float[] getDataAsFloatArray() {
        throw new AssertionError("stub");
    }
}
