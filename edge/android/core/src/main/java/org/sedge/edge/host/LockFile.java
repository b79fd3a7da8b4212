package org.sedge.edge.host;

import org.sedge.edge.SedgeException.StorageError;

import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.channels.OverlappingFileLockException;
import java.util.HashSet;
import java.util.Set;

/**
 * A lock that only one thread among all processes can hold at a time. It is a file, and is released when the process
 * ends.
 */
public final class LockFile implements AutoCloseable {
    // The canonical paths of the files that this process holds. Closing any descriptor of a file releases the process's
    // lock on it. So a held file must not be opened again, not even through a symbolic link.
    private static final Set<String> HELD = new HashSet<>();

    private final String path;
    private final RandomAccessFile open;

    private LockFile(String path, RandomAccessFile open) {
        this.path = path;
        this.open = open;
    }

    /** Takes the lock, or returns null if another thread or process holds it. */
    public static LockFile tryTake(File file) throws StorageError {
        synchronized (HELD) {
            String path = canonical(file);
            if (HELD.contains(path)) {
                return null;
            }
            RandomAccessFile open = null;
            boolean taken = false;
            try {
                open = new RandomAccessFile(file, "rw");
                taken = open.getChannel().tryLock() != null;
                if (taken) {
                    HELD.add(path);
                }
            } catch (IOException | OverlappingFileLockException error) {
                throw Disk.failed("lock", file, error);
            } finally {
                if (!taken) {
                    closed(path, open);
                }
            }
            return taken ? new LockFile(path, open) : null;
        }
    }

    /** Returns true if this process holds the lock. */
    public static boolean heldHere(File file) throws StorageError {
        synchronized (HELD) {
            return HELD.contains(canonical(file));
        }
    }

    private static String canonical(File file) throws StorageError {
        try {
            return file.getCanonicalPath();
        } catch (IOException error) {
            throw Disk.failed("lock", file, error);
        }
    }

    @Override
    public void close() throws StorageError {
        synchronized (HELD) {
            if (HELD.remove(path)) {
                closed(path, open);
            }
        }
    }

    private static void closed(String path, RandomAccessFile open) throws StorageError {
        try {
            if (open != null) {
                open.close();
            }
        } catch (IOException error) {
            throw Disk.failed("unlock", new File(path), error);
        }
    }
}
