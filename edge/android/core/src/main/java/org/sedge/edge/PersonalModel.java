package org.sedge.edge;

import org.jspecify.annotations.Nullable;

import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.Sandbox;
import org.sedge.edge.training.Fitting;
import org.sedge.edge.training.NamedInputs;
import org.sedge.edge.wire.Bundle;

import java.io.File;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/**
 * A device's own model: always the newest that its agent has, or the one it would start from if it has not trained yet.
 * Thread-safe.
 *
 * <p>No agent needs to run, and a running agent, in this process or another, is not disturbed: it replaces its journal
 * atomically, and the files that the journal names never change. If a newer model cannot be read, the old one stays in
 * use.
 */
public final class PersonalModel implements AutoCloseable {
    private final OpenModel open;

    /**
     * Opens the model in an agent's state folder. This takes a moment, or minutes if the agent has not tried the
     * bundle's programs yet: not for an app's main thread.
     *
     * @param run the run whose model to open; null: the newest
     * @param backends the runtimes that may run it, the preferred one first
     * @param sandbox runs programs before they run in this process
     * @throws SedgeException {@code ConfigError} if there is no model, or no backend that runs it; {@code StorageError}
     *     or {@code CodecError} if it cannot be read
     */
    public PersonalModel(File stateFolder, @Nullable String run, List<Backend> backends, Sandbox sandbox)
            throws SedgeException {
        if (!new File(stateFolder, "journal").isFile()) {
            throw new ConfigError("state_dir", "'" + stateFolder + "'", "an agent's folder, with its journal");
        }
        open = new OpenModel(stateFolder, run, backends, sandbox);
    }

    /** The outputs (N, ...) for inputs (N, ...). Throws {@code DataError} for inputs that the model cannot take. */
    public Rows predict(Rows inputs) throws SedgeException {
        synchronized (open) {
            Bundle bundle = open.newest();
            return open.predict(Fitting.inputs(inputs, bundle, "inputs: x"));
        }
    }

    /** The same for a model of several inputs, each by its name. */
    public Rows predict(Map<String, Rows> inputs) throws SedgeException {
        return predict(packed(inputs));
    }

    /** The class of each input, and each class's probability. Throws {@code DataError} if the model does not classify. */
    public Classified classify(Rows inputs) throws SedgeException {
        synchronized (open) {
            Bundle bundle = open.newest();
            if (bundle.numClasses == 0) {
                throw new DataError("bundle '" + bundle.name + "': its outputs are not classes");
            }
            return new Classified(open.predict(Fitting.inputs(inputs, bundle, "inputs: x")), bundle);
        }
    }

    /** The same for a model of several inputs, each by its name. */
    public Classified classify(Map<String, Rows> inputs) throws SedgeException {
        return classify(packed(inputs));
    }

    private Rows packed(Map<String, Rows> inputs) throws SedgeException {
        synchronized (open) {
            return NamedInputs.packed(inputs, open.newest(), "inputs");
        }
    }

    /**
     * Writes the current model for other programs: {@code .npz} has its tensors by name, from which
     * {@code sedge-export personal --weights} makes files for an app's runtime; {@code .onnx} is a program with the
     * tensors built in, from x to logits. Throws {@code CodecError} for {@code .onnx} if the bundle has no program for
     * ONNX Runtime.
     */
    public void export(File file) throws SedgeException {
        synchronized (open) {
            Bundle bundle = open.newest();
            ModelFile.write(bundle, open.theta(), file);
        }
    }

    /** Whether this device has trained the model; otherwise it is the one from which the device would start. */
    public boolean trained() {
        synchronized (open) {
            open.newest();
            return open.trained();
        }
    }

    /** The names of the classes; empty if the model has none. */
    public List<String> labels() {
        synchronized (open) {
            return Collections.unmodifiableList(open.newest().labels);
        }
    }

    /** Frees the runtime's memory. */
    @Override
    public void close() {
        synchronized (open) {
            open.close();
        }
    }
}
