package org.sedge.edge.jobs;

import org.sedge.edge.SedgeException.StorageError;

/** One value that survives crashes and power loss. */
public interface DurableBytes {
    /** The last committed value; null if there is none. */
    byte[] load() throws StorageError;

    /** Replaces the value, durable on return. If it throws, either the old or the new value is stored. */
    void commit(byte[] value) throws StorageError;
}
