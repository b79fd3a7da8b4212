package org.sedge.edge.jobs;

import org.sedge.edge.SedgeException.StorageError;

/** One value that survives crashes and power loss. */
public interface DurableBytes {
    /** The value committed last; null where there is none. */
    byte[] load() throws StorageError;

    /** Replaces the value, durable on return. Where it throws, the old value or the new one is there. */
    void commit(byte[] value) throws StorageError;
}
