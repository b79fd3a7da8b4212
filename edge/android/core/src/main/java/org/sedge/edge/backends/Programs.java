package org.sedge.edge.backends;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.host.Disk;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.training.JobStopped;
import org.sedge.edge.training.Trainer;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.OnnxProgram;

import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.BooleanSupplier;

/**
 * Loads a bundle's programs in the first backend that the bundle has programs for and in which they pass their trial.
 */
public final class Programs implements Trainer.Opener {
    private static final BooleanSupplier NEVER = new BooleanSupplier() {
        @Override
        public boolean getAsBoolean() {
            return false;
        }
    };
    private final File folder;
    private final List<Backend> backends;
    private final Trials trials;

    /** The folder holds the program files from the last job, and must not be used for anything else. */
    public Programs(File folder, List<Backend> backends, Trials trials) {
        this.folder = folder;
        this.backends = backends;
        this.trials = trials;
    }

    /**
     * Loads the programs for the job's training. They run in this process only after they have passed a trial in
     * another process.
     */
    @Override
    public Trainer open(Bundle bundle, Job job, BooleanSupplier stopped)
            throws CodecError, ConfigError, StorageError, JobStopped {
        Backend backend;
        String step = job.order.work.loss.isEmpty() ? "gradient" : "guided";
        try {
            backend = passing(bundle, job.order.bundle.sha256, stopped, step, "evaluate");
        } catch (JobStopped stop) {
            throw new JobStopped(stop.getMessage(), job.checkpoint);
        }
        return open(bundle, backend, step);
    }

    /**
     * Writes the bundle's program {@code predict} to a file of this name in the folder and loads it from there. The
     * file must exist as long as the predictor is open.
     */
    public Predictor predictor(Bundle bundle, byte[] sha256, String file)
            throws CodecError, ConfigError, StorageError, JobStopped {
        Backend backend = passing(bundle, sha256, NEVER, "predict");
        byte[] program = bundle.program("predict", backend.name());
        return new Predictor(bundle, load(new File(folder, file), bundle, backend, "predict", program));
    }

    /**
     * Returns the first backend for which the bundle has the required programs, and in which all its programs pass
     * their trial.
     */
    private Backend passing(Bundle bundle, byte[] sha256, BooleanSupplier stopped, String... programs)
            throws CodecError, ConfigError, StorageError, JobStopped {
        StringBuilder tried = new StringBuilder();
        StringBuilder faults = new StringBuilder();
        for (Backend backend : backends) {
            boolean complete = true;
            for (String program : programs) {
                complete &= bundle.program(program, backend.name()) != null;
            }
            if (complete) {
                if (bundle.frozenLayout != null) {
                    throw new CodecError(
                            "bundle '" + bundle.name + "': has frozen data, which this device has not announced");
                }
                String fault = trials.fault(bundle, sha256, backend, stopped);
                if (fault.isEmpty()) {
                    return backend;
                }
                tried.append(tried.length() == 0 ? "" : ", ").append(backend.name());
                faults.append("; ").append(backend.name()).append(": ").append(fault);
            }
        }
        if (faults.length() > 0) {
            throw new ConfigError("backend", "'" + tried + "'", "a working backend" + faults);
        }
        throw new CodecError("bundle '" + bundle.name + "': no programs " + Arrays.asList(programs)
                + " for any of this device's backends");
    }

    private Trainer open(Bundle bundle, Backend backend, String step) throws CodecError, StorageError {
        byte[] gradient = bundle.program(step, backend.name());
        byte[] evaluate = bundle.program("evaluate", backend.name());
        removeAllBut(file(folder, gradient), file(folder, evaluate));
        List<Program> loaded = new ArrayList<>();
        boolean opened = false;
        try {
            loaded.add(load(file(folder, gradient), bundle, backend, step, gradient));
            loaded.add(load(file(folder, evaluate), bundle, backend, "evaluate", evaluate));
            Trainer trainer = new BundleTrainer(bundle, loaded.get(0), loaded.get(1));
            opened = true;
            return trainer;
        } finally {
            for (Program program : loaded) {
                if (!opened) {
                    program.close();
                }
            }
        }
    }

    /** Deletes the programs of earlier jobs. They are no longer needed, because only one job runs at a time. */
    private void removeAllBut(File... wanted) throws StorageError {
        File[] found = folder.listFiles();
        for (File file : found == null ? new File[0] : found) {
            if (!Arrays.asList(wanted).contains(file)) {
                Disk.remove(file);
            }
        }
    }

    static File file(File folder, byte[] program) {
        return new File(folder, Hex.encode(Digests.sha256(program)));
    }

    /** @throws CodecError if one of the programs for a backend breaks the rules for programs */
    static void check(Bundle bundle, Backend backend) throws CodecError {
        for (String name : Tryout.PROGRAMS) {
            byte[] data = bundle.program(name, backend.name());
            try {
                if (data != null) {
                    check(backend, data);
                }
            } catch (CodecError error) {
                throw refused(bundle, name, error);
            }
        }
    }

    private static void check(Backend backend, byte[] data) throws CodecError {
        if (backend.name().equals("onnxruntime")) {
            OnnxProgram.check(data);
        }
    }

    private static CodecError refused(Bundle bundle, String name, Exception error) {
        return new CodecError("bundle '" + bundle.name + "': program '" + name + "' cannot be loaded: "
                + error.getMessage(), error);
    }

    /** Writes one program to a file and loads it from there. */
    static Program load(File file, Bundle bundle, Backend backend, String name, byte[] data)
            throws CodecError, StorageError {
        if (!file.isFile() || !Arrays.equals(Disk.read(file), data)) {
            Disk.requireRoom(file.getParentFile(), data.length);
            Disk.replace(file, data);
        }
        try {
            check(backend, data);
            return backend.load(file, backend.name().equals("onnxruntime") ? null : name);
        } catch (CodecError | BackendException error) {
            throw refused(bundle, name, error);
        }
    }
}
