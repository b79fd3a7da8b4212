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
import java.util.Arrays;
import java.util.List;

/** A bundle's programs in the first backend that it has them for. */
public final class Programs {
    private final File folder;
    private final List<Backend> backends;

    /** Program files lie in the folder while they are used. */
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
                Program loaded = load(bundle, backend, "gradient", gradient);
                try {
                    return new Trainer(bundle, loaded, load(bundle, backend, "evaluate", evaluate));
                } catch (CodecError | StorageError error) {
                    loaded.close();
                    throw error;
                }
            }
        }
        throw new CodecError("bundle '" + bundle.name + "': no programs for any of this device's backends");
    }

    private Program load(Bundle bundle, Backend backend, String name, byte[] data) throws CodecError, StorageError {
        if (bundle.frozenLayout != null) {
            throw new CodecError("bundle '" + bundle.name + "': frozen data, which this device has not announced");
        }
        File file = new File(folder, Hex.encode(Digests.sha256(data)));
        if (!file.isFile() || !Arrays.equals(Disk.read(file), data)) {
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
