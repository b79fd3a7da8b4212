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
 * A device's own model. It is always the newest one that the agent has; before the first training, it is the one from
 * which the device would start. Thread-safe.
 *
 * <p>No agent needs to run. A running agent, in this process or another, is not disturbed: it replaces its journal
 * atomically, and the files that the journal names never change. If a newer model cannot be read, the old one stays in
 * use.
 */
public final class PersonalModel implements AutoCloseable {
    private final OpenModel open;

    /**
     * Opens the model in an agent's state folder. This usually takes a moment. It takes minutes if the agent has not
     * yet tried out the bundle's programs, so do not call it on an app's main thread.
     *
     * @param run the run whose model to open; null for the newest
     * @param backends the runtimes that may run it, in order of preference
     * @param sandbox tries out programs before they run in this process
     * @throws SedgeException {@code ConfigError} if there is no model, or no backend that runs it; {@code StorageError}
     *     or {@code CodecError} if the model cannot be read
     */
    public PersonalModel(File stateFolder, @Nullable String run, List<Backend> backends, Sandbox sandbox)
            throws SedgeException {
        if (!new File(stateFolder, "journal").isFile()) {
            throw new ConfigError("state_dir", "'" + stateFolder + "'", "an agent's folder, with its journal");
        }
        open = new OpenModel(stateFolder, run, backends, sandbox);
    }

    /**
     * Returns the outputs (N, ...) for inputs (N, ...).
     *
     * @throws DataError if the inputs do not fit the model
     */
    public Rows predict(Rows inputs) throws SedgeException {
        synchronized (open) {
            Bundle bundle = open.newest();
            return open.predict(Fitting.inputs(inputs, bundle, "inputs: x"));
        }
    }

    /** Returns the outputs (N, ...) of a model that has several inputs (N, ...), given by name. */
    public Rows predict(Map<String, Rows> inputs) throws SedgeException {
        return predict(packed(inputs));
    }

    /**
     * Returns the class of each input and the probabilities of all classes.
     *
     * @throws DataError if the model is not a classifier, or the inputs do not fit it
     */
    public Classified classify(Rows inputs) throws SedgeException {
        synchronized (open) {
            Bundle bundle = open.newest();
            if (bundle.numClasses == 0) {
                throw new DataError("bundle '" + bundle.name + "': its outputs are not classes");
            }
            return new Classified(open.predict(Fitting.inputs(inputs, bundle, "inputs: x")), bundle);
        }
    }

    /** Classifies with a model that has several inputs (N, ...), given by name. */
    public Classified classify(Map<String, Rows> inputs) throws SedgeException {
        return classify(packed(inputs));
    }

    private Rows packed(Map<String, Rows> inputs) throws SedgeException {
        synchronized (open) {
            return NamedInputs.packed(inputs, open.newest(), "inputs");
        }
    }

    /**
     * Writes the current model for other programs. A {@code .npz} file has its tensors by name;
     * {@code sedge-export personal --weights} converts it for an app's runtime. An {@code .onnx} file is a program from
     * x to logits with the tensors built in.
     *
     * @throws CodecError for {@code .onnx} if the bundle has no program for ONNX Runtime
     */
    public void export(File file) throws SedgeException {
        synchronized (open) {
            Bundle bundle = open.newest();
            ModelFile.write(bundle, open.theta(), file);
        }
    }

    /** Returns true if this device has trained the model, and false if it would start its first training from it. */
    public boolean trained() {
        synchronized (open) {
            open.newest();
            return open.trained();
        }
    }

    /** Returns the names of the classes, or an empty list if the model has none. */
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
