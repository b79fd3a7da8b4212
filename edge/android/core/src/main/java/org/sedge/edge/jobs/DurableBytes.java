package org.sedge.edge.jobs;

import org.sedge.edge.SedgeException.StorageError;

/** One value that survives crashes and power loss. */
public interface DurableBytes {
    /** Returns the last committed value, or null if there is none. */
    byte[] load() throws StorageError;

    /**
     * Replaces the value. The new one is durable on return; if this throws, either the old or the new one is stored.
     */
    void commit(byte[] value) throws StorageError;
}
