package org.sedge.edge.backends;

import org.sedge.edge.SedgeException.ConfigError;

import java.io.File;

/** A runtime that executes a bundle's programs, as {@code backends/} of the Python agent. */
public interface Backend {
    /** The name that HELLO announces and the bundle's manifest files programs under: "executorch", "onnxruntime". */
    String name();

    /**
     * Loads one program.
     *
     * @param file the program file of the bundle, already verified by its digest
     * @param method the method within the file (ExecuTorch), or null where a file holds one program (ONNX)
     */
    Program load(File file, String method) throws BackendException;

    /**
     * A new backend of a class, which needs a public constructor without arguments: a trial makes one in its process.
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
