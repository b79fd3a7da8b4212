package org.pytorch.executorch;

/** Declares the parts of ExecuTorch's AAR that we call. Used only for compiling. */
public class Module {
    public static final int LOAD_MODE_FILE = 0;

    public static Module load(String modelPath, int loadMode, int numThreads) {
        throw new AssertionError("stub");
    }

    public EValue[] execute(String methodName, EValue... inputs) {
        throw new AssertionError("stub");
    }

    public void destroy() {
        throw new AssertionError("stub");
    }
}
