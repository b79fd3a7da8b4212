package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.host.BlobFolder;
import org.sedge.edge.host.Journal;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.DurableBytes;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Manifest;

import java.io.File;
import java.util.BitSet;
import java.util.Set;

/** A device's disk that refuses the call that a test names, as Python names it; of blobs large ones, but for one. */
final class RefusingDisk implements Blobs, DurableBytes {
    String refused = "";
    int least;
    String but;
    private final BlobFolder blobs;
    private final Journal journal;

    RefusingDisk(File folder) throws StorageError {
        blobs = new BlobFolder(folder, 1);
        journal = new Journal(new File(folder, "journal"));
    }

    private void asked(String call) throws StorageError {
        if (refused.equals(call)) {
            throw new StorageError("the disk is full (test)", null);
        }
    }

    @Override
    public boolean has(byte[] sha256) {
        return blobs.has(sha256);
    }

    @Override
    public byte[] read(byte[] sha256) throws StorageError {
        return blobs.read(sha256);
    }

    @Override
    public byte[] readSpan(byte[] sha256, int offset, int length) throws StorageError {
        return blobs.readSpan(sha256, offset, length);
    }

    @Override
    public byte[] write(byte[] data) throws StorageError {
        if (data.length >= least && !Hex.encode(Digests.sha256(data)).equals(but)) {
            asked("write");
        }
        return blobs.write(data);
    }

    @Override
    public void settle() throws StorageError {
        asked("settle");
        blobs.settle();
    }

    @Override
    public BitSet openPart(Manifest manifest) throws StorageError {
        asked("open_part");
        return blobs.openPart(manifest);
    }

    @Override
    public void writePart(Manifest manifest, int index, byte[] data) throws StorageError {
        asked("write_part");
        blobs.writePart(manifest, index, data);
    }

    @Override
    public boolean finishPart(Manifest manifest) throws StorageError {
        asked("finish_part");
        return blobs.finishPart(manifest);
    }

    @Override
    public void collect(Set<String> keep) throws StorageError {
        asked("collect");
        blobs.collect(keep);
    }

    @Override
    public byte[] load() throws StorageError {
        return journal.load();
    }

    @Override
    public void commit(byte[] value) throws StorageError {
        asked("commit");
        journal.commit(value);
        asked("last-step-of-a-commit");
    }
}
