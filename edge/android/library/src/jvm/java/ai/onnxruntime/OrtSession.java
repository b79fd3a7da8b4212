package ai.onnxruntime;

import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * The AAR's class of this name, with one graph, whose names are not in the order of bundle.md: gradient is theta plus
 * the first of w, loss is the first of x times the first of y.
 */
public class OrtSession implements AutoCloseable {
    private static final FloatBuffer GRADIENT = FloatBuffer.allocate(2);
    private static final FloatBuffer LOSS = FloatBuffer.allocate(1);

    public static class SessionOptions implements AutoCloseable {
        String format;

        public SessionOptions() {
            OrtEnvironment.open++;
        }

        public void setIntraOpNumThreads(int threads) {}

        public void setInterOpNumThreads(int threads) {}

        public void setMemoryPatternOptimization(boolean on) {}

        public void addConfigEntry(String key, String value) {
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

    OrtSession(SessionOptions options) throws OrtException {
        if (!"session.load_model_format=ONNX".equals(options.format)) {
            throw new OrtException("the file chooses its format");
        }
        OrtEnvironment.open++;
    }

    public Set<String> getInputNames() {
        return new LinkedHashSet<String>(Arrays.asList("w", "y", "x", "theta"));
    }

    public Set<String> getOutputNames() {
        return new LinkedHashSet<String>(Arrays.asList("loss", "more", "gradient"));
    }

    public Result run(Map<String, ? extends OnnxTensor> inputs) throws OrtException {
        FloatBuffer theta = (FloatBuffer) inputs.get("theta").data;
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
