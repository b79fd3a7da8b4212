package org.sedge.edge.host;

import org.sedge.edge.SedgeException.StorageError;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;

/** Writing files so that they survive a power cut; every {@code IOException} becomes a {@code StorageError}. */
public final class Disk {
    private Disk() {}

    /** The whole content of a file. */
    public static byte[] read(File file) throws StorageError {
        try {
            return Files.readAllBytes(file.toPath());
        } catch (IOException error) {
            throw failed("read", file, error);
        }
    }

    /** Makes a folder and its parents. */
    public static void makeFolder(File folder) throws StorageError {
        try {
            Files.createDirectories(folder.toPath());
        } catch (IOException error) {
            throw failed("make folder", folder, error);
        }
    }

    /** Makes the data the content of the file, completely or not at all; durable on return. */
    public static void replace(File file, byte[] data) throws StorageError {
        write(file, data);
        syncFolder(file.getParentFile());
    }

    /** As {@link #replace}, but a power cut may undo the name until the folder is flushed. */
    static void write(File file, byte[] data) throws StorageError {
        File temporary = new File(file.getPath() + ".tmp");
        try {
            try (FileOutputStream out = new FileOutputStream(temporary)) {
                out.write(data);
                out.getFD().sync();
            }
            Files.move(temporary.toPath(), file.toPath(), StandardCopyOption.ATOMIC_MOVE,
                    StandardCopyOption.REPLACE_EXISTING);
        } catch (IOException error) {
            temporary.delete(); // after a failed flush its content is unknown for good
            throw failed("write", file, error);
        }
    }

    /** Makes the names in a folder durable, where the system can: Android's Java opens no folder. */
    static void syncFolder(File folder) {
        try (FileChannel channel = FileChannel.open(folder.toPath(), StandardOpenOption.READ)) {
            channel.force(true);
        } catch (IOException error) {
            // The rename is ordered before later ones by the journals of ext4 and f2fs.
            return;
        }
    }

    static StorageError failed(String doing, File file, IOException error) {
        return new StorageError(doing + " " + file + ": " + error, error);
    }
}
