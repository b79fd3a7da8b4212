package org.sedge.edge.backends;

import org.sedge.edge.SedgeException.ConfigError;

import java.io.File;

/** A runtime that executes a bundle's programs, like {@code backends/} of the Python agent. */
public interface Backend {
    /** The runtime's name in HELLO and in the bundle's manifest: "executorch", "onnxruntime". */
    String name();

    /**
     * Loads one program.
     *
     * @param file the program file of the bundle, already verified by its digest
     * @param method the method within the file (ExecuTorch), or null if a file holds one program (ONNX)
     */
    Program load(File file, String method) throws BackendException;

    /**
     * A new instance of a backend class, which needs a public constructor without arguments, as a trial's process makes
     * its own instance.
     *
     * @throws ConfigError for any other name
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
