package org.sedge.edge.backends;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Journal;
import org.sedge.edge.host.LockFile;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.training.JobStopped;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.MsgPack;
import org.sedge.edge.wire.Record;
import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Type;

import java.io.File;
import java.io.IOException;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BooleanSupplier;

/**
 * Tries out every program of a bundle in a separate process before it runs in this one, like the Python agent's
 * backends/trial.py.
 *
 * <p>A verdict holds for these programs, this runtime and this machine. Verdicts are stored in the journal
 * {@code trials} of the state folder, in the Python agent's format: the map {@code found} has an entry for each
 * subject, oldest first, that says how its trial ended, or "" for a pass. An outcome that may not occur again is kept
 * only in memory: a lack of memory, or a timeout.
 */
public final class Trials {
    /**
     * A trial costs about as much as five training steps. Even the slowest usable model takes only seconds per step.
     */
    private static final long TIMEOUT_MILLIS = 300_000;
    /** How often to check whether the trial must stop. */
    private static final long LOOK_MILLIS = 100;
    /** The maximum number of verdicts in the file. A device keeps the bundles of 16 runs, in a few widths each. */
    static final int MAX_VERDICTS = 64;

    static final Schema<Record> VERDICTS = Record.schema();
    static final Field<Record, Map<String, String>> FOUND = VERDICTS.optional(
            "found", Type.map(Type.text(0, 1 << 12), MAX_VERDICTS), Collections.<String, String>emptyMap());

    private final File folder;
    private final Journal journal;
    private final Sandbox sandbox;
    private final Blobs blobs;
    private final long timeoutMillis;
    private final File busy;
    private final Map<String, String> known = new HashMap<>();

    /** @param blobs the blobs from which bundles are read */
    public Trials(File stateFolder, Sandbox sandbox, Blobs blobs) throws StorageError {
        this(stateFolder, sandbox, blobs, TIMEOUT_MILLIS);
    }

    Trials(File stateFolder, Sandbox sandbox, Blobs blobs, long timeoutMillis) throws StorageError {
        this.sandbox = sandbox;
        this.blobs = blobs;
        this.timeoutMillis = timeoutMillis;
        folder = new File(stateFolder, "trial");
        busy = new File(stateFolder, "trial.lock");
        journal = new Journal(new File(stateFolder, "trials"));
        Disk.makeFolder(folder);
    }

    /**
     * Returns why this process must not run a bundle's programs for a backend, or "" if it may. The bundle is the blob
     * {@code sha256}. Among all processes that use the state folder, only one trial runs at a time.
     *
     * @throws CodecError if a program must not be given to a runtime
     * @throws JobStopped once {@code stopped} returns true
     */
    String fault(Bundle bundle, byte[] sha256, Backend backend, BooleanSupplier stopped)
            throws CodecError, StorageError, JobStopped {
        String subject = Hex.encode(Digests.sha256(MsgPack.pack(
                Arrays.asList(backend.name(), sandbox.host(), bundle.programHashes(backend.name())))));
        String fault = verdict(subject, kept());
        if (fault != null) {
            return fault;
        }
        LockFile alone = taken(stopped);
        try {
            // Read again: another process may have tried the same programs while we waited.
            Map<String, String> kept = kept();
            fault = verdict(subject, kept);
            if (fault == null) {
                Verdict verdict = tried(bundle, sha256, backend, stopped);
                if (verdict.lasting && verdict.fault.isEmpty()) {
                    Programs.check(bundle, backend); // also checks programs that only predictions will need
                }
                fault = verdict.fault;
                known.put(subject, fault);
                if (verdict.lasting) {
                    keep(kept, subject, fault);
                }
            }
            return fault;
        } finally {
            alone.close();
        }
    }

    private String verdict(String subject, Map<String, String> kept) {
        return known.containsKey(subject) ? known.get(subject) : kept.get(subject);
    }

    /** Waits until no other trial is running, and returns the lock. */
    private LockFile taken(BooleanSupplier stopped) throws StorageError, JobStopped {
        LockFile lock = LockFile.tryTake(busy);
        while (lock == null) {
            if (stopsSoon(stopped) || Thread.currentThread().isInterrupted()) {
                throw stopped();
            }
            lock = LockFile.tryTake(busy);
        }
        return lock;
    }

    private static JobStopped stopped() {
        return new JobStopped("a trial run was stopped", null);
    }

    /** Returns the stored verdicts, or an empty map if they cannot be read, because trials can be repeated. */
    private Map<String, String> kept() {
        try {
            byte[] saved = journal.load();
            return saved == null ? Collections.<String, String>emptyMap() : VERDICTS.decode(saved).get(FOUND);
        } catch (StorageError | IllegalArgumentException damaged) {
            return Collections.emptyMap();
        }
    }

    private void keep(Map<String, String> kept, String subject, String fault) {
        Map<String, String> found = new LinkedHashMap<>(kept);
        found.put(subject, fault);
        for (Iterator<String> oldest = found.keySet().iterator(); found.size() > MAX_VERDICTS;) {
            oldest.next();
            oldest.remove();
        }
        try {
            journal.commit(VERDICTS.empty().with(FOUND, found).encode());
        } catch (StorageError refused) {
            // The disk may be full. The next start will try the programs again.
        }
    }

    /** The outcome of a trial, and whether another trial would end in the same way. */
    private static final class Verdict {
        final String fault;
        final boolean lasting;

        Verdict(String fault, boolean lasting) {
            this.fault = fault;
            this.lasting = lasting;
        }
    }

    private Verdict tried(Bundle bundle, byte[] sha256, Backend backend, BooleanSupplier stopped)
            throws StorageError, JobStopped {
        clear();
        byte[] packed = blobs.read(sha256);
        long room = packed.length;
        for (String name : Tryout.PROGRAMS) { // the other process writes each program to a file
            byte[] program = bundle.program(name, backend.name());
            room += program == null ? 0 : program.length;
        }
        Disk.requireRoom(folder, room);
        Disk.replace(new File(folder, Tryout.BUNDLE), packed);
        try (Sandbox.Trial trial = sandbox.begin(folder, backend)) {
            return watched(new Steps(trial), stopped);
        } catch (IOException error) {
            return couldNotBegin(error);
        } finally {
            clear();
        }
    }

    private void clear() throws StorageError {
        File[] files = folder.listFiles();
        for (File file : files == null ? new File[0] : files) {
            Disk.remove(file);
        }
    }

    private static Verdict couldNotBegin(IOException error) {
        return new Verdict("a trial run could not begin: " + error.getMessage(), false);
    }

    /** Runs the steps in a separate thread, because a step may take arbitrarily long. */
    private Verdict watched(Steps steps, BooleanSupplier stopped) throws JobStopped {
        FutureTask<Boolean> task = new FutureTask<>(steps);
        Thread thread = new Thread(task, "sedge-trial");
        thread.setDaemon(true);
        thread.start();
        long began = System.nanoTime();
        while (!stopped.getAsBoolean()) {
            try {
                // A pass is stored only if at least one program could be loaded.
                return new Verdict("", task.get(LOOK_MILLIS, TimeUnit.MILLISECONDS));
            } catch (TimeoutException waiting) {
                if (System.nanoTime() - began > timeoutMillis * 1_000_000) {
                    String end = " did not end within " + timeoutMillis / 1000 + " s";
                    return new Verdict("a trial run" + steps.which() + end, false);
                }
            } catch (ExecutionException failed) {
                Verdict verdict = ended(steps, failed.getCause());
                if (verdict.lasting || !stopsSoon(stopped)) {
                    return verdict;
                }
            } catch (InterruptedException error) { // the thread's owner is asking it to stop
                Thread.currentThread().interrupt();
                break;
            }
        }
        throw stopped();
    }

    /**
     * Returns true if the agent is being stopped. Waits a moment first: a stop may end all its processes at once, and
     * the trial's process may be the first to end.
     */
    private static boolean stopsSoon(BooleanSupplier stopped) {
        try {
            Thread.sleep(LOOK_MILLIS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        return stopped.getAsBoolean();
    }

    private static Verdict ended(Steps steps, Throwable cause) {
        if (cause instanceof Sandbox.Crash) {
            String fault = "a trial run" + steps.which() + " ended with " + cause.getMessage();
            return new Verdict(fault, ((Sandbox.Crash) cause).lasting);
        }
        return couldNotBegin(cause instanceof IOException ? (IOException) cause : new IOException(cause));
    }

    /** Runs every program on every sample. */
    private static final class Steps implements Callable<Boolean> {
        private final Sandbox.Trial trial;
        private volatile String last;

        Steps(Sandbox.Trial trial) {
            this.trial = trial;
        }

        @Override
        public Boolean call() throws IOException, Sandbox.Crash {
            boolean any = false;
            for (int sample = 0; sample < Tryout.SAMPLES; sample++) {
                for (String name : Tryout.PROGRAMS) {
                    last = name;
                    any = trial.run(name, sample);
                }
            }
            return any;
        }

        /** Names the program that was started last, for a message. */
        String which() {
            return last == null ? "" : " of '" + last + "'";
        }
    }
}
