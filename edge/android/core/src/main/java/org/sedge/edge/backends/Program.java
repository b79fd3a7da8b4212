package org.sedge.edge.backends;

/** A loaded program, which is a pure function of tensors. Not thread-safe. */
public interface Program extends AutoCloseable {
    /** Runs the program once. Later runs do not change the returned tensors. */
    Tensor[] run(Tensor... inputs) throws BackendException;

    @Override
    void close();
}
