package org.sedge.android;

import android.content.Context;

import org.jspecify.annotations.Nullable;

import org.sedge.edge.Agent;
import org.sedge.edge.AgentConfig;
import org.sedge.edge.ClientCertificate;
import org.sedge.edge.JoinText;
import org.sedge.edge.JoinToken;
import org.sedge.edge.Joining;
import org.sedge.edge.KeptCertificate;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.LockFile;
import org.sedge.edge.wire.Agreement;
import org.sedge.edge.wire.Hex;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;

/**
 * This phone's membership in a fleet.
 *
 * <p>The secret and the agent's state are in the app's private folder. Other apps cannot read it, and backups do not
 * include it: frames sent from a restored state would reuse old numbers, so the coordinator would drop them.
 */
public final class Membership {
    private static final long LEAVE_MILLIS = 90_000;

    private Membership() {}

    /**
     * Stores a join text. The device takes part starting with its next job.
     *
     * @throws SedgeException if the text is not a join text; the membership is then unchanged
     */
    public static AgentConfig join(Context context, String text) throws SedgeException, IOException {
        AgentConfig config = AgentConfig.fromJoinText(text);
        write(file(context), text.trim());
        return config;
    }

    /**
     * Joins with a token ({@code sedge-cloud device token add}). This phone generates its own keys, and requests the id
     * {@code name} unless the token specifies one. Do not call it on an app's main thread. If a call is interrupted, or
     * nobody accepts the phone in time, the next call with the same token resumes the join.
     *
     * @return the configuration, or null if nobody has accepted the phone after {@code maxMillis}
     * @throws SedgeException if the text is not a token, or the coordinator or the broker refuses
     */
    public static @Nullable AgentConfig joinByToken(Context context, String text, String name, long maxMillis)
            throws SedgeException, IOException {
        JoinToken token = JoinText.token(text);
        if (token == null) {
            return join(context, text);
        }
        File begun = new File(folder(context), "joining");
        AgentConfig config;
        try {
            config = new Joining(token, name, pair(begun, token.account.device)).ask(maxMillis);
        } catch (SedgeException error) {
            Files.deleteIfExists(begun.toPath());
            throw error;
        }
        if (config != null) {
            write(file(context), JoinText.of(config));
            Files.deleteIfExists(begun.toPath());
        }
        return config;
    }

    /** Returns the key pair of an unfinished join with this token, or creates and stores a new one. */
    private static Agreement.Pair pair(File begun, String token) throws IOException {
        if (begun.exists()) {
            String[] lines = new String(Files.readAllBytes(begun.toPath()), StandardCharsets.US_ASCII).split("\n");
            if (lines.length == 3 && lines[0].equals(token)) {
                return new Agreement.Pair(Hex.decode(lines[1]), Hex.decode(lines[2]));
            }
        }
        Agreement.Pair pair = Agreement.Pair.make();
        write(begun, token + "\n" + Hex.encode(pair.point) + "\n" + Hex.encode(pair.coded));
        return pair;
    }

    private static void write(File place, String text) throws IOException {
        File fresh = new File(place.getPath() + ".new");
        try (FileOutputStream out = new FileOutputStream(fresh)) {
            out.write(text.getBytes(StandardCharsets.US_ASCII));
            out.getFD().sync();
        }
        Files.move(fresh.toPath(), place.toPath(), StandardCopyOption.ATOMIC_MOVE);
    }

    /** Returns the stored configuration, or null if this phone has not joined. */
    public static @Nullable AgentConfig config(Context context) throws SedgeException, IOException {
        File place = file(context);
        if (!place.exists()) {
            return null;
        }
        return AgentConfig.fromJoinText(new String(Files.readAllBytes(place.toPath()), StandardCharsets.US_ASCII));
    }

    /** Returns the phone's newest certificate for the broker; null if it has not joined, or its broker needs none. */
    public static @Nullable ClientCertificate certificate(Context context) throws SedgeException, IOException {
        AgentConfig config = config(context);
        return config == null ? null : new KeptCertificate(config, state(context, config)).newest().certificate;
    }

    /**
     * Leaves the fleet for good. Stops all jobs, notifies the coordinator, and deletes the phone's data for this
     * fleet: the secret, the log, and the state of this and every earlier membership. Other fleets' state is kept. This
     * takes up to a minute and a half, so do not call it on an app's main thread.
     *
     * @return true if the coordinator was notified; otherwise its operator must revoke the device
     * @throws SedgeException if the training does not stop, or the disk fails
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

    /**
     * Returns the folder of the agent's state. Each fleet and device has its own, so that joining another fleet loses
     * nothing.
     */
    static File state(Context context, AgentConfig config) {
        return new File(folder(context), "state-" + config.fleet + "." + config.device);
    }

    /** Empties the state folder of every device id that this phone has had in the fleet. */
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

    /** Returns the log of this phone's activity in the fleet, for a status screen. */
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
