package org.sedge.edge.jobs;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.wire.Manifest;

import java.util.BitSet;
import java.util.Set;

/** Immutable blobs, named by their SHA-256, and partly received ones. Whole vectors are blobs, too. */
public interface Blobs {
    boolean has(byte[] sha256);

    /** A blob, its hash checked; one that fails the check is removed. */
    byte[] read(byte[] sha256) throws StorageError;

    /** A part of a blob, without a hash check. */
    byte[] readSpan(byte[] sha256, int offset, int length) throws StorageError;

    /** Stores a blob, durable once settled. Returns its SHA-256. */
    byte[] write(byte[] data) throws StorageError;

    /** Makes every blob durable. Call it before each commit, which may name any of them. */
    void settle() throws StorageError;

    /** The chunks of a blob that have arrived, by the digests of what is on disk. */
    BitSet openPart(Manifest manifest) throws StorageError;

    void writePart(Manifest manifest, int index, byte[] data) throws StorageError;

    /** Turns a complete part into a blob. Returns false, and deletes the part, if its hash is wrong. */
    boolean finishPart(Manifest manifest) throws StorageError;

    /** Writes are refused from now on that would take more than this share of what they take and what is free. */
    void share(double share);

    /** Deletes everything whose name, in hexadecimal digits, is not in {@code keep}. */
    void collect(Set<String> keep) throws StorageError;
}
