package org.sedge.edge.jobs;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.wire.Manifest;

import java.util.BitSet;
import java.util.Set;

/**
 * Stores complete, immutable blobs, each named by its SHA-256, and blobs received only in part. Whole vectors are
 * stored as blobs as well.
 */
public interface Blobs {
    boolean has(byte[] sha256);

    /** Returns a blob after checking its hash. If the hash is wrong, the blob is deleted. */
    byte[] read(byte[] sha256) throws StorageError;

    /** Returns a part of a blob, without checking its hash. */
    byte[] readSpan(byte[] sha256, int offset, int length) throws StorageError;

    /** Stores a blob and returns its SHA-256. It is durable only after {@link #settle}. */
    byte[] write(byte[] data) throws StorageError;

    /** Makes all blobs durable. Call it before each commit, because the committed state may name any of them. */
    void settle() throws StorageError;

    /** Returns which chunks of a blob have arrived. They are recognized by their digests. */
    BitSet openPart(Manifest manifest) throws StorageError;

    void writePart(Manifest manifest, int index, byte[] data) throws StorageError;

    /** Turns a complete part into a blob. If its hash is wrong, deletes the part and returns false. */
    boolean finishPart(Manifest manifest) throws StorageError;

    /**
     * Limits the disk usage, from now on, to a share of the free space plus the space that the blobs take. Writes
     * beyond the limit are refused.
     */
    void share(double share);

    /** Deletes every blob whose name, in hexadecimal digits, is not in {@code keep}. */
    void collect(Set<String> keep) throws StorageError;
}
