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
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Set;

/**
 * Simulates a device's disk on which one kind of call fails. The test gives the name of the method as it is spelled in
 * Python. It can restrict the failing writes to blobs of a minimum size, and exempt one blob.
 */
final class RefusingDisk implements Blobs, DurableBytes {
    /** Simulates a power cut, so nothing catches it. */
    @SuppressWarnings("serial")
    static final class Killed extends Error { }

    private static int turn;
    private static int first = -1;
    private static int count;
    private static String how;
    private static String why;

    String refused = "";
    int least;
    String but;
    private final File folder;
    private final List<byte[]> unsettled = new ArrayList<>();
    private final BlobFolder blobs;
    private final Journal journal;

    RefusingDisk(File folder) throws StorageError {
        this.folder = folder;
        asked("open");
        blobs = new BlobFolder(folder, 1);
        journal = new Journal(new File(folder, "journal"));
    }

    /**
     * Makes some of the following calls fail. {@code words[2]} is the index of the first such call, counted over all
     * disks from now on, {@code words[3]} the number of such calls, {@code words[4]} how they fail (refuse, lose or
     * kill), and {@code words[5]} the error message. Returns the number of calls since the previous request.
     */
    static int turns(String[] words) {
        int before = turn;
        turn = 0;
        first = Integer.parseInt(words[2]);
        count = Integer.parseInt(words[3]);
        how = words[4];
        why = words[5].replace('_', ' ');
        return before;
    }

    private void asked(String call) throws StorageError {
        int at = turn++;
        boolean hit = at >= first && at < first + count;
        if (hit && how.equals("lose")) {
            for (byte[] name : unsettled) {
                file(name).delete();
            }
        }
        if (hit && !how.equals("refuse")) {
            throw new Killed();
        }
        if (hit || refused.equals(call)) {
            throw new StorageError(hit ? why : "No space left on device (test)", null);
        }
    }

    private File file(byte[] name) {
        return new File(folder, "blobs/" + Hex.encode(name));
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
        boolean there = blobs.has(Digests.sha256(data));
        byte[] name = blobs.write(data);
        if (!there) {
            unsettled.add(name);
        }
        return name;
    }

    @Override
    public void settle() throws StorageError {
        asked("settle");
        blobs.settle();
        unsettled.clear();
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
        unsettled.add(manifest.sha256);
        return blobs.finishPart(manifest);
    }

    @Override
    public void share(double share) {
        blobs.share(share);
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
