package org.pytorch.executorch;

/** Of ExecuTorch's AAR: what we call. Compile-only. */
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
