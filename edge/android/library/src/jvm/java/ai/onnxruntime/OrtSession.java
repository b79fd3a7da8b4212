package ai.onnxruntime;

import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Replaces the AAR's class for tests on a JVM. It has two fixed graphs, whose inputs and outputs are not in the order
 * of bundle.md. A file that contains "logits" predicts by class means, like tests/android/class_means.py. For any other
 * file, the gradient is theta plus the first element of w, and the loss is the product of the first elements of x and
 * y.
 */
public class OrtSession implements AutoCloseable {
    private static final FloatBuffer GRADIENT = FloatBuffer.allocate(2);
    private static final FloatBuffer LOSS = FloatBuffer.allocate(1);

    public static class SessionOptions implements AutoCloseable {
        String format;

        public SessionOptions() {
            OrtEnvironment.open++;
        }

        public void setIntraOpNumThreads(int threads) throws OrtException {}

        public void setInterOpNumThreads(int threads) throws OrtException {}

        public void setMemoryPatternOptimization(boolean on) throws OrtException {}

        public void addConfigEntry(String key, String value) throws OrtException {
            format = key + "=" + value;
        }

        @Override
        public void close() {
            OrtEnvironment.open--;
        }
    }

    public static class Result implements AutoCloseable {
        private final Map<String, OnnxValue> made = new HashMap<String, OnnxValue>();

        public Optional<OnnxValue> get(String name) {
            return Optional.ofNullable(made.get(name));
        }

        @Override
        public void close() {
            for (OnnxValue value : made.values()) {
                value.close();
            }
        }
    }

    private final boolean predicts;

    OrtSession(byte[] model, SessionOptions options) throws OrtException {
        if (!"session.load_model_format=ONNX".equals(options.format)) {
            throw new OrtException("the file chooses its format");
        }
        predicts = new String(model, StandardCharsets.ISO_8859_1).contains("logits");
        OrtEnvironment.open++;
    }

    public Set<String> getInputNames() {
        List<String> names = predicts ? Arrays.asList("x", "theta") : Arrays.asList("w", "y", "x", "theta");
        return new LinkedHashSet<String>(names);
    }

    public Set<String> getOutputNames() {
        List<String> names = predicts ? Arrays.asList("logits") : Arrays.asList("loss", "more", "gradient");
        return new LinkedHashSet<String>(names);
    }

    /** Computes twice the product of x and each mean, minus the mean's square. */
    private static OnnxTensor logits(FloatBuffer theta, OnnxTensor x) {
        FloatBuffer rows = (FloatBuffer) x.data;
        int batch = (int) x.getInfo().getShape()[0];
        int size = rows.remaining() / batch;
        int classes = theta.remaining() / size;
        FloatBuffer found = FloatBuffer.allocate(batch * classes);
        for (int i = 0; i < found.capacity(); i++) {
            float sum = 0;
            for (int f = 0; f < size; f++) {
                float mean = theta.get(i % classes * size + f);
                sum += mean * (2 * rows.get(i / classes * size + f) - mean);
            }
            found.put(i, sum);
        }
        return new OnnxTensor(found, batch, classes);
    }

    public Result run(Map<String, ? extends OnnxTensor> inputs) throws OrtException {
        FloatBuffer theta = (FloatBuffer) inputs.get("theta").data;
        if (predicts) {
            Result result = new Result();
            result.made.put("logits", logits(theta, inputs.get("x")));
            return result;
        }
        if (theta.remaining() != GRADIENT.capacity()) {
            throw new OrtException("theta has another shape");
        }
        for (int i = 0; i < GRADIENT.capacity(); i++) {
            GRADIENT.put(i, theta.get(i) + ((FloatBuffer) inputs.get("w").data).get(0));
        }
        long label = ((LongBuffer) inputs.get("y").data).get(0);
        LOSS.put(0, ((FloatBuffer) inputs.get("x").data).get(0) * label);
        Result result = new Result();
        result.made.put("gradient", new OnnxTensor(GRADIENT, GRADIENT.capacity()));
        result.made.put("loss", new OnnxTensor(LOSS));
        return result;
    }

    @Override
    public void close() throws OrtException {
        OrtEnvironment.open--;
    }
}
