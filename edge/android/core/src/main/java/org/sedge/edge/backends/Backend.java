package org.sedge.edge.backends;

import org.sedge.edge.SedgeException.ConfigError;

import java.io.File;

/** A runtime that executes a bundle's programs, like those in the Python agent's {@code backends/}. */
public interface Backend {
    /** Returns the runtime's name in HELLO and in the bundle's manifest, such as "executorch" or "onnxruntime". */
    String name();

    /**
     * Loads one program.
     *
     * @param file a program file of the bundle, already verified by its digest
     * @param method the method within the file (ExecuTorch), or null if the file holds one program (ONNX)
     */
    Program load(File file, String method) throws BackendException;

    /**
     * Creates a backend by its class name. The class needs a public constructor without arguments, because a trial's
     * process creates its own instance.
     *
     * @throws ConfigError if the class is not a usable backend
     */
    static Backend of(String className) throws ConfigError {
        try {
            return (Backend) Class.forName(className).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException | LinkageError | ClassCastException error) {
            throw new ConfigError("backend " + className + ": " + error + ", expected a class that is a Backend, with a "
                    + "public constructor without arguments");
        }
    }
}
