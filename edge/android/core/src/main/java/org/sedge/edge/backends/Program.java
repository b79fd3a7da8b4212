package org.sedge.edge.backends;

/** A loaded program: a pure function of tensors. Not thread-safe. */
public interface Program extends AutoCloseable {
    /** Runs once. The caller owns the outputs: a later call does not change them. */
    Tensor[] run(Tensor... inputs) throws BackendException;

    @Override
    void close();
}
