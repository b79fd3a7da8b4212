package org.sedge.android;

import org.sedge.edge.backends.Backend;
import org.sedge.executorch.AndroidExecutorch;
import org.sedge.onnxruntime.OnnxRuntime;

import java.util.ArrayList;
import java.util.List;

/** Finds the model runtimes that an app was built with. */
public final class Backends {
    static final String NONE = "This app was built without a runtime for models; see docs/android.md.";

    private Backends() {}

    /**
     * Returns the runtimes whose classes are present. ExecuTorch comes before ONNX Runtime, because it needs less
     * memory.
     */
    public static List<Backend> installed() {
        List<Backend> found = new ArrayList<Backend>();
        if (has("org.pytorch.executorch.Module")) {
            found.add(new AndroidExecutorch());
        }
        if (has("ai.onnxruntime.OrtEnvironment")) {
            found.add(new OnnxRuntime());
        }
        return found;
    }

    private static boolean has(String name) {
        try {
            Class.forName(name, false, Backends.class.getClassLoader());
            return true;
        } catch (ClassNotFoundException error) {
            return false;
        }
    }
}
