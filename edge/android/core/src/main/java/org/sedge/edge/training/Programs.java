package org.sedge.edge.training;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.BackendException;
import org.sedge.edge.backends.Program;
import org.sedge.edge.host.Disk;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.OnnxProgram;

import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** A bundle's programs in the first backend that it has them for. */
public final class Programs {
    private final File folder;
    private final List<Backend> backends;

    /** The folder is theirs alone; it holds the files of the last job's programs. */
    public Programs(File folder, List<Backend> backends) {
        this.folder = folder;
        this.backends = backends;
    }

    /** Loads what a training needs. Throws {@code CodecError} for programs that are missing, refused or damaged. */
    Trainer open(Bundle bundle) throws CodecError, StorageError {
        for (Backend backend : backends) {
            byte[] gradient = bundle.program("gradient", backend.name());
            byte[] evaluate = bundle.program("evaluate", backend.name());
            if (gradient != null && evaluate != null) {
                return open(bundle, backend, gradient, evaluate);
            }
        }
        throw new CodecError("bundle '" + bundle.name + "': no programs for any of this device's backends");
    }

    private Trainer open(Bundle bundle, Backend backend, byte[] gradient, byte[] evaluate)
            throws CodecError, StorageError {
        removeAllBut(file(gradient), file(evaluate));
        List<Program> loaded = new ArrayList<>();
        boolean opened = false;
        try {
            loaded.add(load(bundle, backend, "gradient", gradient));
            loaded.add(load(bundle, backend, "evaluate", evaluate));
            Trainer trainer = new Trainer(bundle, loaded.get(0), loaded.get(1));
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

    /** Removes the programs of earlier jobs: there is one job at a time. */
    private void removeAllBut(File... wanted) throws StorageError {
        File[] found = folder.listFiles();
        for (File file : found == null ? new File[0] : found) {
            if (!Arrays.asList(wanted).contains(file)) {
                Disk.remove(file);
            }
        }
    }

    private File file(byte[] program) {
        return new File(folder, Hex.encode(Digests.sha256(program)));
    }

    private Program load(Bundle bundle, Backend backend, String name, byte[] data) throws CodecError, StorageError {
        if (bundle.frozenLayout != null) {
            throw new CodecError("bundle '" + bundle.name + "': frozen data, which this device has not announced");
        }
        File file = file(data);
        if (!file.isFile() || !Arrays.equals(Disk.read(file), data)) {
            Disk.requireRoom(folder, data.length);
            Disk.replace(file, data);
        }
        boolean onnx = backend.name().equals("onnxruntime");
        try {
            if (onnx) {
                OnnxProgram.check(data);
            }
            return backend.load(file, onnx ? null : name);
        } catch (CodecError | BackendException error) {
            throw new CodecError("bundle '" + bundle.name + "': program '" + name
                    + "' cannot be loaded: " + error.getMessage(), error);
        }
    }
}
