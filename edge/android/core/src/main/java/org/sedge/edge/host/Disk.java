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

/** Writes files so that they survive a power cut; every {@code IOException} becomes a {@code StorageError}. */
public final class Disk {
    /** Space that stays free for the journal and the rest of the system. */
    private static final long MIN_FREE_BYTES = 16 << 20;
    // Models and examples' traces must not be readable by other users of the machine.
    private static final FileAttribute<?> OWNERS_FOLDER =
            PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"));
    private static final FileAttribute<?> OWNERS_FILE =
            PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"));

    private Disk() {}

    /** The whole content of a file. */
    public static byte[] read(File file) throws StorageError {
        try {
            return Files.readAllBytes(file.toPath());
        } catch (IOException error) {
            throw failed("read", file, error);
        }
    }

    /** Creates a folder and its parents, for this user only. */
    public static void makeFolder(File folder) throws StorageError {
        try {
            Files.createDirectories(folder.toPath(), OWNERS_FOLDER);
        } catch (IOException error) {
            throw failed("make folder", folder, error);
        }
    }

    /** Throws {@code StorageError} if {@code length} more bytes would leave too little space. */
    public static void requireRoom(File folder, long length) throws StorageError {
        long free = folder.getUsableSpace();
        if (free - length < MIN_FREE_BYTES) {
            throw new StorageError("disk full: " + folder + " needs " + length + " bytes, " + free + " are free, "
                    + MIN_FREE_BYTES + " must stay free", null);
        }
    }

    /** The total size of the files in a folder, in bytes. */
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

    /** Removes everything in a folder and below it except one file; a symbolic link is removed, not followed. */
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

    /** Creates an empty file, for this user only. */
    static void create(File file) throws IOException {
        Files.createFile(file.toPath(), OWNERS_FILE);
    }

    /** Makes the data the content of the file, completely or not at all; durable on return. */
    public static void replace(File file, byte[] data) throws StorageError {
        write(file, data);
        syncFolder(file.getParentFile());
    }

    /** As {@link #replace}, but a power cut may undo the renaming until the folder is flushed. */
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
            temporary.delete(); // after a failed flush its content stays unknown
            throw failed("write", file, error);
        }
    }

    /** Makes the names in a folder durable. If the system cannot open folders, its file system orders the renames. */
    static void syncFolder(File folder) throws StorageError {
        FileChannel opened;
        try {
            opened = FileChannel.open(folder.toPath(), StandardOpenOption.READ);
        } catch (IOException error) { // Android's Java opens none
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
