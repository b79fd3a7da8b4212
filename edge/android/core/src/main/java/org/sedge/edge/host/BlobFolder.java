package org.sedge.edge.host;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Manifest;

import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Set;

/**
 * Stores blobs as files. A file {@code blobs/HASH} appears only once the blob is complete, checked and flushed. A file
 * {@code parts/HASH} holds the chunks that have arrived so far. Chunks are written without flushing, because after a
 * power cut their digests show which are intact.
 */
public final class BlobFolder implements Blobs {
    private static final long MEASURE_NS = 10_000_000_000L;

    private final File blobs;
    private final File parts;
    private volatile double share;
    private long used;
    private long measureAt = Long.MIN_VALUE;

    /** @param share the share of the free space plus the folder's own size that the folder may use; 1 sets no limit */
    public BlobFolder(File root, double share) throws StorageError {
        this.share = share;
        blobs = new File(root, "blobs");
        parts = new File(root, "parts");
        Disk.makeFolder(blobs);
        Disk.makeFolder(parts);
    }

    @Override
    public void share(double most) {
        share = most;
    }

    @Override
    public boolean has(byte[] sha256) {
        return file(blobs, sha256).isFile();
    }

    @Override
    public byte[] read(byte[] sha256) throws StorageError {
        File file = file(blobs, sha256);
        byte[] data = Disk.read(file);
        if (!Arrays.equals(Digests.sha256(data), sha256)) {
            Disk.remove(file);
            throw new StorageError("read blob " + file + ": " + data.length + " bytes do not match its sha256", null);
        }
        return data;
    }

    @Override
    public byte[] readSpan(byte[] sha256, int offset, int length) throws StorageError {
        File file = file(blobs, sha256);
        byte[] data = new byte[length];
        try (RandomAccessFile in = new RandomAccessFile(file, "r")) {
            in.seek(offset);
            in.readFully(data);
            return data;
        } catch (IOException error) {
            throw Disk.failed("read blob", file, error);
        }
    }

    @Override
    public byte[] write(byte[] data) throws StorageError {
        byte[] sha256 = Digests.sha256(data);
        if (!has(sha256)) {
            requireRoom(blobs, data.length);
            Disk.write(file(blobs, sha256), data);
        }
        return sha256;
    }

    @Override
    public void settle() throws StorageError {
        Disk.syncFolder(blobs);
    }

    @Override
    public BitSet openPart(Manifest manifest) throws StorageError {
        File part = file(parts, manifest.sha256);
        BitSet held = new BitSet();
        if (!part.exists()) {
            requireRoom(parts, manifest.size);
            return held;
        }
        try (RandomAccessFile in = new RandomAccessFile(part, "r")) {
            for (int i = 0; i < manifest.count && manifest.offset(i) + manifest.length(i) <= in.length(); i++) {
                byte[] data = new byte[manifest.length(i)];
                in.seek(manifest.offset(i));
                in.readFully(data);
                held.set(i, manifest.matches(i, data));
            }
            return held;
        } catch (IOException error) {
            throw Disk.failed("read part", part, error);
        }
    }

    @Override
    public void writePart(Manifest manifest, int index, byte[] data) throws StorageError {
        File part = file(parts, manifest.sha256);
        requireRoom(parts, data.length);
        try {
            if (!part.exists()) {
                Disk.create(part);
            }
            try (RandomAccessFile out = new RandomAccessFile(part, "rw")) {
                out.seek(manifest.offset(index));
                out.write(data);
            }
        } catch (IOException error) {
            throw Disk.failed("write part", part, error);
        }
    }

    /**
     * Checks that there is room for {@code length} more bytes. A download has many chunks, so the usage is measured
     * only occasionally and estimated in between.
     */
    private synchronized void requireRoom(File folder, long length) throws StorageError {
        Disk.requireRoom(folder, length);
        if (share == 1) {
            return;
        }
        if (System.nanoTime() - measureAt >= 0 || measureAt == Long.MIN_VALUE) {
            used = Disk.size(blobs) + Disk.size(parts);
            measureAt = System.nanoTime() + MEASURE_NS;
        }
        long limit = (long) (share * (used + folder.getUsableSpace()));
        if (used + length > limit) {
            measureAt = Long.MIN_VALUE;
            throw new StorageError(folder + " needs " + length + " bytes, but " + used + " of " + limit
                    + " are used: the limit of the disk's share is " + share, null);
        }
        used += length;
    }

    @Override
    public boolean finishPart(Manifest manifest) throws StorageError {
        File part = file(parts, manifest.sha256);
        try (RandomAccessFile in = new RandomAccessFile(part, "rw")) {
            in.getFD().sync();
            MessageDigest digest = Digests.sha256();
            byte[] buffer = new byte[1 << 16];
            for (int count = in.read(buffer); count > 0; count = in.read(buffer)) {
                digest.update(buffer, 0, count);
            }
            if (in.length() != manifest.size || !Arrays.equals(digest.digest(), manifest.sha256)) {
                Disk.remove(part);
                return false;
            }
        } catch (IOException error) {
            part.delete(); // after a failed flush, the content of the file is unknown
            throw Disk.failed("finish part", part, error);
        }
        if (!part.renameTo(file(blobs, manifest.sha256))) {
            throw Disk.failed("rename part", part, new IOException("the system refused"));
        }
        return true;
    }

    @Override
    public void collect(Set<String> keep) throws StorageError {
        for (File folder : new File[] {blobs, parts}) {
            File[] files = folder.listFiles();
            if (files == null) {
                throw Disk.failed("list", folder, new IOException("the system refused"));
            }
            for (File file : files) {
                boolean whole = folder == parts && new File(blobs, file.getName()).exists();
                if (!keep.contains(file.getName()) || whole) {
                    Disk.remove(file);
                }
            }
        }
    }

    private static File file(File folder, byte[] sha256) {
        return new File(folder, Hex.encode(sha256));
    }
}
