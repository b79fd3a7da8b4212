package org.sedge.edge.host;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.jobs.DurableBytes;
import org.sedge.edge.wire.Digests;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Stores one value in a file that is replaced atomically: 8 magic bytes, the SHA-256 of the value, and the value. */
public final class Journal implements DurableBytes {
    /**
     * The last byte is the version of the state's schema. Increment it with every change that would alter the meaning
     * of old files.
     */
    private static final byte[] MAGIC = "SEDGEJV1".getBytes(StandardCharsets.US_ASCII);
    private static final int SCHEMA_AT = MAGIC.length - 1;
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
        boolean ours = Arrays.equals(Arrays.copyOf(data, SCHEMA_AT), Arrays.copyOf(MAGIC, SCHEMA_AT));
        if (data.length < HEAD_BYTES || !ours) {
            throw damaged("its " + data.length + " bytes are not a journal");
        }
        if (data[SCHEMA_AT] != MAGIC[SCHEMA_AT]) {
            throw new StorageError("journal " + file + ": schema " + (char) data[SCHEMA_AT] + ", this version reads "
                    + (char) MAGIC[SCHEMA_AT] + "; nothing was changed", null);
        }
        byte[] value = Arrays.copyOfRange(data, HEAD_BYTES, data.length);
        if (!Arrays.equals(Arrays.copyOf(data, HEAD_BYTES), head(value))) {
            throw damaged("its sha256 does not match");
        }
        return value;
    }

    private StorageError damaged(String what) {
        return new StorageError("journal " + file + ": damaged, " + what + "; restore the file, or move it away to "
                + "start over without its contents", null);
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
