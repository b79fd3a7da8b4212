package ai.onnxruntime;

import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** Declares the parts of ONNX Runtime's AAR that we call. Used only for compiling. */
public class OrtSession implements AutoCloseable {
    public static class SessionOptions implements AutoCloseable {
        public void setIntraOpNumThreads(int threads) throws OrtException {
            throw new AssertionError("stub");
        }

        public void setInterOpNumThreads(int threads) throws OrtException {
            throw new AssertionError("stub");
        }

        public void setMemoryPatternOptimization(boolean on) throws OrtException {
            throw new AssertionError("stub");
        }

        public void addConfigEntry(String key, String value) throws OrtException {
            throw new AssertionError("stub");
        }

        @Override
        public void close() {
            throw new AssertionError("stub");
        }
    }

    public static class Result implements AutoCloseable {
        public Optional<OnnxValue> get(String name) {
            throw new AssertionError("stub");
        }

        @Override
        public void close() {
            throw new AssertionError("stub");
        }
    }

    public Set<String> getInputNames() {
        throw new AssertionError("stub");
    }

    public Set<String> getOutputNames() {
        throw new AssertionError("stub");
    }

    public Result run(Map<String, ? extends OnnxTensor> inputs) throws OrtException {
        throw new AssertionError("stub");
    }

    @Override
    public void close() throws OrtException {
        throw new AssertionError("stub");
    }
}
