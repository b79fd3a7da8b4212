package org.pytorch.executorch;

import org.sedge.edge.backends.BackendException;
import org.sedge.edge.backends.Program;
import org.sedge.executorch.JvmExecutorch;

import java.io.File;
import java.util.HashMap;
import java.util.Map;

/** Replaces the AAR's class for tests on a JVM, using the JVM's runtime. Each method is loaded when it is first run. */
public class Module {
    public static final int LOAD_MODE_FILE = 0;

    private final File file;
    private final Map<String, Program> methods = new HashMap<String, Program>();

    private Module(File file) {
        this.file = file;
    }

    public static Module load(String modelPath, int loadMode, int numThreads) {
        if (!new File(modelPath).exists()) {
            throw new RuntimeException("Cannot load model path " + modelPath);
        }
        return new Module(new File(modelPath));
    }

    public EValue[] execute(String methodName, EValue... inputs) {
        try {
            if (!methods.containsKey(methodName)) {
                methods.put(methodName, new JvmExecutorch().load(file, methodName));
            }
            org.sedge.edge.backends.Tensor[] given = new org.sedge.edge.backends.Tensor[inputs.length];
            for (int i = 0; i < inputs.length; i++) {
                given[i] = inputs[i].toTensor().content;
            }
            org.sedge.edge.backends.Tensor[] made = methods.get(methodName).run(given);
            EValue[] outputs = new EValue[made.length];
            for (int i = 0; i < made.length; i++) {
                outputs[i] = EValue.from(new Tensor(made[i]));
            }
            return outputs;
        } catch (BackendException error) {
            throw new RuntimeException(error.getMessage());
        }
    }

    public void destroy() {
        for (Program program : methods.values()) {
            program.close();
        }
    }
}
