package org.sedge.android;

import android.content.Context;

import org.jspecify.annotations.Nullable;

import org.sedge.edge.Agent;
import org.sedge.edge.AgentConfig;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.LockFile;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;

/**
 * The fleet that this phone is a device of.
 *
 * <p>The secret and the agent's state lie in the app's private folder, where no other app reads them and no backup
 * copies them: a restored state would count its frames from an old number, and the coordinator would drop them.
 */
public final class Membership {
    private static final long LEAVE_MILLIS = 90_000;

    private Membership() {}

    /**
     * Stores a join text; the device takes part from the next job on.
     *
     * @throws SedgeException if it is no join text; the membership is then what it was before
     */
    public static AgentConfig join(Context context, String text) throws SedgeException, IOException {
        AgentConfig config = AgentConfig.fromJoinText(text);
        File place = file(context);
        File fresh = new File(place.getPath() + ".new");
        try (FileOutputStream out = new FileOutputStream(fresh)) {
            out.write(text.trim().getBytes(StandardCharsets.US_ASCII));
            out.getFD().sync();
        }
        Files.move(fresh.toPath(), place.toPath(), StandardCopyOption.ATOMIC_MOVE);
        return config;
    }

    /** The stored configuration, or null where this phone has not joined. */
    public static @Nullable AgentConfig config(Context context) throws SedgeException, IOException {
        File place = file(context);
        if (!place.exists()) {
            return null;
        }
        return AgentConfig.fromJoinText(new String(Files.readAllBytes(place.toPath()), StandardCharsets.US_ASCII));
    }

    /**
     * Leaves the fleet for good: no job trains any more, the coordinator is told, and what the phone has of this fleet
     * is deleted: the secret, the log, and the state as this device and as any that it was in this fleet before. The
     * state of other fleets that it was in stays. Takes up to a minute and a half: not for an app's main thread.
     *
     * @return whether the coordinator has heard it; otherwise its operator has to revoke the device
     * @throws SedgeException while a training goes on all the same, and where the disk refuses
     */
    public static boolean leave(Context context) throws SedgeException, IOException {
        AgentConfig config = config(context);
        Conditions.cancel(context);
        boolean heard = true;
        if (config != null) {
            heard = Agent.leave(config, state(context, config), LEAVE_MILLIS);
            emptyStates(context, config.fleet);
        }
        Files.deleteIfExists(file(context).toPath());
        Files.deleteIfExists(new File(folder(context), "rounds").toPath());
        return heard;
    }

    /** Where the agent keeps its state: one folder for each fleet and device, so that joining another loses nothing. */
    static File state(Context context, AgentConfig config) {
        return new File(folder(context), "state-" + config.fleet + "." + config.device);
    }

    /** Empties the folders of all devices that this phone has been in the fleet. */
    private static void emptyStates(Context context, String fleet) throws StorageError {
        File[] files = folder(context).listFiles();
        for (File file : files == null ? new File[0] : files) {
            if (file.getName().startsWith("state-" + fleet + ".")) {
                empty(file);
            }
        }
    }

    private static void empty(File state) throws StorageError {
        File file = new File(state, "lock");
        LockFile lock = LockFile.tryTake(file);
        if (lock == null) {
            throw new StorageError(state + ": an agent is using this state folder", null);
        }
        try {
            Disk.removeAllBut(state, file);
        } finally {
            lock.close();
        }
    }

    /** What this phone has done in the fleet, for a status screen. */
    public static RoundLog log(Context context) {
        return new RoundLog(new File(folder(context), "rounds"));
    }

    private static File file(Context context) {
        return new File(folder(context), "join");
    }

    private static File folder(Context context) {
        File folder = new File(context.getNoBackupFilesDir(), "sedge");
        folder.mkdirs();
        return folder;
    }
}
