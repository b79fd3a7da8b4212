package org.sedge.onnxruntime;

import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;

import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.BackendException;
import org.sedge.edge.backends.Program;
import org.sedge.edge.backends.Tensor;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs ONNX programs in ONNX Runtime's AAR, {@code com.microsoft.onnxruntime:onnxruntime-android}. The core's
 * {@code OnnxProgram} has checked them.
 */
public final class OnnxRuntime implements Backend {
    // A graph names its inputs and outputs, but a Program takes and returns them by position, in this order
    // (bundle.md).
    private static final List<String> INPUTS = Arrays.asList("theta", "frozen", "x", "y", "w", "noise");
    private static final List<String> OUTPUTS = Arrays.asList(
            "gradient", "loss", "statistics", "loss_sum", "metric_sum", "weight_sum", "logits");

    @Override
    public String name() {
        return "onnxruntime";
    }

    @Override
    public Program load(File file, String method) throws BackendException {
        try {
            return open(Files.readAllBytes(file.toPath()));
        } catch (IOException | OrtException | RuntimeException | LinkageError error) {
            throw new BackendException("onnxruntime: " + file.getName() + ": " + error.getMessage(), error);
        }
    }

    private static Program open(byte[] program) throws OrtException {
        OrtSession.SessionOptions options = new OrtSession.SessionOptions();
        boolean opened = false;
        try {
            options.setIntraOpNumThreads(1);
            options.setInterOpNumThreads(1);
            options.setMemoryPatternOptimization(false);
            // Otherwise bytes 4 to 7 could select another file format, which has not been checked.
            options.addConfigEntry("session.load_model_format", "ONNX");
            OrtEnvironment environment = OrtEnvironment.getEnvironment();
            Program graph = new Graph(environment, environment.createSession(program, options), options);
            opened = true;
            return graph;
        } finally {
            if (!opened) {
                options.close();
            }
        }
    }

    private static final class Graph implements Program {
        private final OrtEnvironment environment;
        private final OrtSession session;
        private final OrtSession.SessionOptions options; // kept because they must outlive the session
        private final List<String> inputs;
        private final List<String> outputs;

        Graph(OrtEnvironment environment, OrtSession session, OrtSession.SessionOptions options) {
            this.environment = environment;
            this.session = session;
            this.options = options;
            inputs = inOrder(INPUTS, session.getInputNames());
            outputs = inOrder(OUTPUTS, session.getOutputNames());
        }

        @Override
        public Tensor[] run(Tensor... given) throws BackendException {
            if (given.length != inputs.size()) {
                throw new BackendException(
                        "onnxruntime: found " + given.length + " inputs, expected " + inputs.size() + ": " + inputs);
            }
            Map<String, OnnxTensor> feeds = new HashMap<String, OnnxTensor>();
            try {
                for (int i = 0; i < given.length; i++) {
                    feeds.put(inputs.get(i), wrapped(given[i]));
                }
                try (OrtSession.Result made = session.run(feeds)) {
                    Tensor[] copies = new Tensor[outputs.size()];
                    for (int i = 0; i < copies.length; i++) {
                        copies[i] = copied((OnnxTensor) made.get(outputs.get(i)).get());
                    }
                    return copies;
                }
            } catch (OrtException | RuntimeException error) {
                throw new BackendException("onnxruntime: " + error.getMessage(), error);
            } finally {
                for (OnnxTensor tensor : feeds.values()) {
                    tensor.close();
                }
            }
        }

        private OnnxTensor wrapped(Tensor tensor) throws OrtException, BackendException {
            ByteBuffer data = tensor.data();
            switch (tensor.type()) {
                case FLOAT32:
                    return OnnxTensor.createTensor(environment, data.asFloatBuffer(), tensor.shape());
                case INT64:
                    return OnnxTensor.createTensor(environment, data.asLongBuffer(), tensor.shape());
                default:
                    throw new BackendException(
                            "onnxruntime: found an input of " + tensor.type() + ", expected FLOAT32 or INT64");
            }
        }

        @Override
        public void close() {
            try {
                session.close();
                options.close();
            } catch (OrtException error) {
                throw new IllegalStateException("onnxruntime: " + error.getMessage(), error);
            }
        }
    }

    private static List<String> inOrder(List<String> order, Collection<String> names) {
        List<String> found = new ArrayList<String>(order);
        found.retainAll(names);
        return found;
    }

    private static Tensor copied(OnnxTensor made) {
        Tensor copy = Tensor.zeros(Tensor.Type.FLOAT32, made.getInfo().getShape());
        copy.data().asFloatBuffer().put(made.getFloatBuffer());
        return copy;
    }
}
