package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.DurableBytes;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Manifest;

import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Random;
import java.util.Set;

/** A disk in memory that forgets what was not flushed when the power is cut, and refuses or kills at any operation. */
final class MemoryDisk implements Blobs, DurableBytes {
    /** The process is gone; nothing catches it. */
    @SuppressWarnings("serial")
    static final class Killed extends Error { }

    private final Map<String, byte[]> blobs = new HashMap<>();
    private final Map<String, byte[]> parts = new HashMap<>();
    private final Set<String> unsettled = new HashSet<>();
    private byte[] journal;
    /** Operations until the kill; 0 or less: never. */
    int fuse;
    /** Which operations the disk refuses; null: none. */
    Random refusals;

    /** An operation, or anything else between which a process may be killed. */
    void tick() {
        if (--fuse == 0) {
            throw new Killed();
        }
    }

    /** A write, which may be refused, before or after it has happened. */
    private void write() throws StorageError {
        tick();
        if (refusals != null && refusals.nextInt(40) == 0) {
            throw new StorageError("the disk refuses", null);
        }
    }

    /** The power is gone: of what was not flushed, some is lost. */
    void cutPower(Random random) {
        for (String name : unsettled) {
            if (random.nextBoolean()) {
                blobs.remove(name);
            }
        }
        unsettled.clear();
        for (byte[] part : parts.values()) {
            int from = random.nextInt(part.length);
            Arrays.fill(part, from, Math.min(part.length, from + random.nextInt(8192)), (byte) 0);
        }
    }

    @Override
    public byte[] load() {
        return journal;
    }

    @Override
    public void commit(byte[] value) throws StorageError {
        write();
        journal = value;
        write();
    }

    @Override
    public boolean has(byte[] sha256) {
        return blobs.containsKey(Hex.encode(sha256));
    }

    @Override
    public byte[] read(byte[] sha256) throws StorageError {
        byte[] data = blobs.get(Hex.encode(sha256));
        if (data == null) {
            throw new StorageError("no blob " + Hex.encode(sha256), null);
        }
        return data.clone();
    }

    @Override
    public byte[] readSpan(byte[] sha256, int offset, int length) throws StorageError {
        return Arrays.copyOfRange(read(sha256), offset, offset + length);
    }

    @Override
    public byte[] write(byte[] data) throws StorageError {
        write();
        byte[] sha256 = Digests.sha256(data);
        if (blobs.put(Hex.encode(sha256), data.clone()) == null) { // one that is there is not written again
            unsettled.add(Hex.encode(sha256));
        }
        return sha256;
    }

    @Override
    public void settle() throws StorageError {
        write();
        unsettled.clear();
    }

    @Override
    public BitSet openPart(Manifest manifest) throws StorageError {
        write();
        byte[] part = parts.get(Hex.encode(manifest.sha256));
        BitSet held = new BitSet();
        for (int i = 0; part != null && i < manifest.count; i++) {
            int from = manifest.offset(i);
            held.set(i, manifest.matches(i, Arrays.copyOfRange(part, from, from + manifest.length(i))));
        }
        return held;
    }

    @Override
    public void writePart(Manifest manifest, int index, byte[] data) throws StorageError {
        write();
        byte[] part = parts.computeIfAbsent(Hex.encode(manifest.sha256), name -> new byte[manifest.size]);
        System.arraycopy(data, 0, part, manifest.offset(index), data.length);
    }

    @Override
    public boolean finishPart(Manifest manifest) throws StorageError {
        write();
        byte[] part = parts.getOrDefault(Hex.encode(manifest.sha256), new byte[0]);
        boolean sound = Arrays.equals(Digests.sha256(part), manifest.sha256);
        if (sound) {
            write(part);
        }
        parts.remove(Hex.encode(manifest.sha256));
        return sound;
    }

    @Override
    public void collect(Set<String> keep) throws StorageError {
        write();
        blobs.keySet().retainAll(keep);
        parts.keySet().retainAll(keep);
        parts.keySet().removeAll(blobs.keySet());
    }
}
