package android.os;

import java.io.IOException;
import java.nio.file.ClosedWatchServiceException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardWatchEventKinds;
import java.nio.file.WatchEvent;
import java.nio.file.WatchKey;
import java.nio.file.WatchService;

/**
 * Replaces Android's class for tests on a JVM. It reports only renames in a folder, which it observes with inotify, as
 * Android does.
 */
public abstract class FileObserver {
    public static final int MOVED_TO = 0x80;

    private final Path folder;
    private WatchService watches;

    public FileObserver(String path, int mask) {
        folder = Paths.get(path);
    }

    public abstract void onEvent(int event, String path);

    public void startWatching() {
        try {
            watches = folder.getFileSystem().newWatchService();
            folder.register(watches, StandardWatchEventKinds.ENTRY_CREATE);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        Thread thread = new Thread("FileObserver") {
            @Override
            public void run() {
                try {
                    for (WatchKey key = watches.take(); true; key = watches.take()) {
                        for (WatchEvent<?> event : key.pollEvents()) {
                            onEvent(MOVED_TO, String.valueOf(event.context()));
                        }
                        key.reset();
                    }
                } catch (InterruptedException | ClosedWatchServiceException error) {
                    return;
                }
            }
        };
        thread.setDaemon(true);
        thread.start();
    }

    public void stopWatching() {
        try {
            watches.close();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
