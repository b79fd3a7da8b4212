package org.sedge.edge.host;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.rounds.DurableBytes;
import org.sedge.edge.wire.Digests;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** One value in a file that is replaced atomically: 8 bytes of magic, the SHA-256 of the value, the value. */
public final class Journal implements DurableBytes {
    /** Raise its digit with every change of the state that gives older files another meaning. */
    private static final byte[] MAGIC = "SEDGEJV1".getBytes(StandardCharsets.US_ASCII);
    private static final int HEAD_BYTES = MAGIC.length + 32;

    private final File file;

    public Journal(File file) throws StorageError {
        this.file = file;
        Disk.makeFolder(file.getParentFile());
    }

    @Override
    public byte[] load() throws StorageError {
        if (!file.exists()) {
            return null;
        }
        byte[] data = Disk.read(file);
        byte[] value = Arrays.copyOfRange(data, Math.min(HEAD_BYTES, data.length), data.length);
        byte[] expected = head(value);
        if (!Arrays.equals(Arrays.copyOf(data, HEAD_BYTES), expected)) {
            throw new StorageError("journal " + file + ": damaged, or another version's; restore the file, or move it "
                    + "away to begin anew without what it held", null);
        }
        return value;
    }

    @Override
    public void commit(byte[] value) throws StorageError {
        byte[] data = Arrays.copyOf(head(value), HEAD_BYTES + value.length);
        System.arraycopy(value, 0, data, HEAD_BYTES, value.length);
        Disk.replace(file, data);
    }

    private static byte[] head(byte[] value) {
        byte[] head = Arrays.copyOf(MAGIC, HEAD_BYTES);
        System.arraycopy(Digests.sha256(value), 0, head, MAGIC.length, 32);
        return head;
    }
}
