package org.sedge.edge;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.Predictor;
import org.sedge.edge.backends.Programs;
import org.sedge.edge.backends.Sandbox;
import org.sedge.edge.backends.Trials;
import org.sedge.edge.host.BlobFolder;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Journal;
import org.sedge.edge.host.LockFile;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.rounds.ModelSource;
import org.sedge.edge.training.JobStopped;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Hex;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * The newest model in an agent's state folder, ready to run. It is reloaded when the agent's journal changes. Not
 * thread-safe.
 */
final class OpenModel implements AutoCloseable {
    /** How many times to retry, because the agent may replace the model and delete the old one while we read it. */
    private static final int TRIES = 5;
    private static final long PAUSE_MILLIS = 50;

    private final File folder;
    private final File files;
    private final String run;
    private final Blobs blobs;
    private final Programs programs;
    private ModelSource source;
    private Bundle bundle;
    private Predictor predictor;
    private String seen;
    private boolean closed;

    /** Opens the model of a run, or the newest model if {@code run} is null. */
    OpenModel(File folder, String run, List<Backend> backends, Sandbox sandbox) throws SedgeException {
        this.folder = folder;
        this.run = run;
        files = new File(folder, "predict");
        Disk.makeFolder(files);
        blobs = new BlobFolder(folder, 1);
        programs = new Programs(files, backends, new Trials(folder, sandbox, blobs));
        for (int left = TRIES; source == null; left--) {
            String before = stamp();
            try {
                load();
                seen = before;
            } catch (StorageError error) {
                if (left == 0 || before == null || before.equals(stamp())) {
                    throw error;
                }
            }
        }
    }

    /** Switches to a newer model, if there is one. The old one stays in use while the new one cannot be read. */
    Bundle newest() {
        if (closed) {
            throw new IllegalStateException("the model has been closed");
        }
        String stamp = stamp();
        if (stamp != null && !stamp.equals(seen)) {
            try {
                load();
                seen = stamp;
            } catch (SedgeException error) {
                // The next call will try again.
            }
        }
        return bundle;
    }

    /** Returns the outputs, one row for each row of inputs. The inputs must fit the bundle. */
    Rows predict(Rows inputs) throws SedgeException {
        return predictor.predict(inputs);
    }

    /** Returns the model's parameters, shape (n,). */
    float[] theta() {
        return predictor.theta();
    }

    /** Returns true if the device has trained the model. */
    boolean trained() {
        return source.trained;
    }

    /** Returns a value that changes with each commit of the agent's journal, or null while there is no journal. */
    private String stamp() {
        try {
            BasicFileAttributes found =
                    Files.readAttributes(new File(folder, "journal").toPath(), BasicFileAttributes.class);
            return found.fileKey() + " " + found.lastModifiedTime().to(TimeUnit.NANOSECONDS);
        } catch (IOException error) {
            return null;
        }
    }

    private void load() throws SedgeException {
        ModelSource.Sources sources = new ModelSource.Sources(
                new Journal(new File(folder, "journal")), folder.getPath(), blobs);
        ModelSource found = sources.find(run);
        if (source != null && found.identity.equals(source.identity)) {
            source = found;
            return;
        }
        boolean same = source != null && found.sameBundle(source);
        Bundle newer = same ? bundle : Bundle.unpack(blobs.read(found.bundle));
        float[] theta = found.read(blobs, newer.layout.size);
        if (!same) {
            Predictor opened = opened(newer, found, sources);
            release(); // only now, because the old model stays in use until this one is ready
            bundle = newer;
            predictor = opened;
        }
        predictor.put(theta);
        source = found;
    }

    /**
     * Loads the program from a file named after the bundle. Deletes the files of bundles that the device no longer has.
     */
    private Predictor opened(Bundle newer, ModelSource found, ModelSource.Sources sources) throws SedgeException {
        LockFile alone = taken();
        try {
            File[] old = files.listFiles();
            for (File file : old == null ? new File[0] : old) {
                if (!sources.bundles().contains(file.getName())) {
                    Disk.remove(file);
                }
            }
            return programs.predictor(newer, found.bundle, Hex.encode(found.bundle));
        } catch (JobStopped stop) {
            throw new StorageError("the thread was interrupted while the programs were tried", stop);
        } finally {
            alone.close();
        }
    }

    private LockFile taken() throws StorageError {
        File file = new File(folder, "predict.lock");
        LockFile lock = LockFile.tryTake(file);
        while (lock == null) {
            try {
                Thread.sleep(PAUSE_MILLIS);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new StorageError("the thread was interrupted while another one opened the model", error);
            }
            lock = LockFile.tryTake(file);
        }
        return lock;
    }

    @Override
    public void close() {
        closed = true;
        release();
    }

    private void release() {
        if (predictor != null) {
            predictor.close();
            predictor = null;
        }
    }
}
