package org.sedge.edge.host;

import org.sedge.edge.SedgeException.StorageError;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermissions;

/** Writes files so that they survive a power cut. Turns every {@code IOException} into a {@code StorageError}. */
public final class Disk {
    /** The space to leave free for the journal and the rest of the system. */
    private static final long MIN_FREE_BYTES = 16 << 20;
    // Other users of the machine must not be able to read models, which reveal something about the examples.
    private static final FileAttribute<?> OWNERS_FOLDER =
            PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"));
    private static final FileAttribute<?> OWNERS_FILE =
            PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"));

    private Disk() {}

    /** Returns the entire content of a file. */
    public static byte[] read(File file) throws StorageError {
        try {
            return Files.readAllBytes(file.toPath());
        } catch (IOException error) {
            throw failed("read", file, error);
        }
    }

    /** Creates a folder and its parents, accessible to this user only. */
    public static void makeFolder(File folder) throws StorageError {
        try {
            Files.createDirectories(folder.toPath(), OWNERS_FOLDER);
        } catch (IOException error) {
            throw failed("make folder", folder, error);
        }
    }

    /** @throws StorageError if {@code length} more bytes would leave too little free space */
    public static void requireRoom(File folder, long length) throws StorageError {
        long free = folder.getUsableSpace();
        if (free - length < MIN_FREE_BYTES) {
            throw new StorageError("disk full: " + folder + " needs " + length + " bytes, but " + free
                    + " are free and " + MIN_FREE_BYTES + " must stay free", null);
        }
    }

    /** Returns the total size in bytes of the files in a folder. */
    static long size(File folder) {
        long size = 0;
        File[] files = folder.listFiles();
        for (File file : files == null ? new File[0] : files) {
            size += file.length();
        }
        return size;
    }

    /** Removes a file if it exists. */
    public static void remove(File file) throws StorageError {
        try {
            Files.deleteIfExists(file.toPath());
        } catch (IOException error) {
            throw failed("remove", file, error);
        }
    }

    /** Deletes everything in and below a folder except one file. A symbolic link is deleted, but not its target. */
    public static void removeAllBut(File folder, File kept) throws StorageError {
        File[] files = folder.listFiles();
        for (File file : files == null ? new File[0] : files) {
            if (!file.equals(kept)) {
                if (!Files.isSymbolicLink(file.toPath())) {
                    removeAllBut(file, kept);
                }
                remove(file);
            }
        }
    }

    /** Creates an empty file, accessible to this user only. */
    static void create(File file) throws IOException {
        Files.createFile(file.toPath(), OWNERS_FILE);
    }

    /** Replaces the content of a file with the data, atomically. The change is durable on return. */
    public static void replace(File file, byte[] data) throws StorageError {
        write(file, data);
        syncFolder(file.getParentFile());
    }

    /** Like {@link #replace}, but a power cut may undo the change until the folder is flushed. */
    static void write(File file, byte[] data) throws StorageError {
        File temporary = new File(file.getPath() + ".tmp");
        try {
            Files.deleteIfExists(temporary.toPath());
            create(temporary);
            try (FileOutputStream out = new FileOutputStream(temporary)) {
                out.write(data);
                out.getFD().sync();
            }
            Files.move(temporary.toPath(), file.toPath(), StandardCopyOption.ATOMIC_MOVE,
                    StandardCopyOption.REPLACE_EXISTING);
        } catch (IOException error) {
            temporary.delete(); // after a failed flush, the content of the file is unknown
            throw failed("write", file, error);
        }
    }

    /**
     * Makes the file names in a folder durable. On systems that cannot open folders, this relies on the file system to
     * keep renames in order.
     */
    static void syncFolder(File folder) throws StorageError {
        FileChannel opened;
        try {
            opened = FileChannel.open(folder.toPath(), StandardOpenOption.READ);
        } catch (IOException error) { // Android's Java cannot open folders
            return;
        }
        try (FileChannel channel = opened) {
            channel.force(true);
        } catch (IOException error) {
            throw failed("flush folder", folder, error);
        }
    }

    static StorageError failed(String doing, File file, Exception error) {
        return new StorageError(doing + " " + file + ": " + error, error);
    }
}
