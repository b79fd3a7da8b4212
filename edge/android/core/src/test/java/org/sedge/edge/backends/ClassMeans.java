package org.sedge.edge.backends;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;

/**
 * A backend without a runtime: the programs of tests/android/class_means.py, written in Java.
 *
 * <p>Theta consists of C means of F numbers each. If the inputs are small integers, every operation is exact or rounded
 * once, so gradients have the same bytes as in ONNX Runtime.
 */
public final class ClassMeans implements Backend {
    /** A file that contains this output name is a program for evaluation. */
    private static final String EVALUATES = "metric_sum";

    /** A file that contains this word gives every example the weight 0. */
    private static final String WEIGHTLESS = "weightless";

    private final String name;

    public ClassMeans() {
        this("onnxruntime");
    }

    /** Creates the backend under another name, so that the files need not be ONNX programs. */
    public ClassMeans(String name) {
        this.name = name;
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public Program load(File file, String method) throws BackendException {
        try {
            String text = new String(Files.readAllBytes(file.toPath()), StandardCharsets.ISO_8859_1);
            return new Means(text.contains(EVALUATES), text.contains(WEIGHTLESS));
        } catch (IOException error) {
            throw new BackendException("class means: " + error, error);
        }
    }

    private static final class Means implements Program {
        private final boolean evaluates;
        private final boolean weightless;

        Means(boolean evaluates, boolean weightless) {
            this.evaluates = evaluates;
            this.weightless = weightless;
        }

        @Override
        public Tensor[] run(Tensor... inputs) {
            FloatBuffer theta = inputs[0].data().asFloatBuffer();
            FloatBuffer x = inputs[1].data().asFloatBuffer();
            ByteBuffer y = inputs[2].data();
            FloatBuffer w = inputs[3].data().asFloatBuffer();
            int rows = w.remaining();
            int size = x.remaining() / rows;
            int classes = theta.remaining() / size;
            return evaluates ? evaluated(theta, x, y, w, rows, size, classes)
                    : gradient(theta, x, y, w, rows, size, classes);
        }

        private static Tensor[] gradient(
                FloatBuffer theta, FloatBuffer x, ByteBuffer y, FloatBuffer w, int rows, int size, int classes) {
            float[] sums = new float[classes * size];
            float[] counts = new float[classes];
            float weights = 0;
            for (int i = 0; i < rows; i++) {
                int label = (int) y.getLong(8 * i);
                weights += w.get(i);
                counts[label] += w.get(i);
                for (int j = 0; j < size; j++) {
                    sums[label * size + j] += w.get(i) * x.get(i * size + j);
                }
            }
            Tensor gradient = Tensor.zeros(Tensor.Type.FLOAT32, theta.remaining());
            FloatBuffer out = gradient.data().asFloatBuffer();
            float loss = 0;
            for (int i = 0; i < sums.length; i++) {
                float found = (counts[i / size] * theta.get(i) - sums[i]) / weights;
                out.put(i, found);
                loss += found * found;
            }
            return new Tensor[] {gradient, number(loss)};
        }

        private Tensor[] evaluated(
                FloatBuffer theta, FloatBuffer x, ByteBuffer y, FloatBuffer w, int rows, int size, int classes) {
            float loss = 0;
            float correct = 0;
            float weights = 0;
            for (int i = 0; i < rows; i++) {
                int best = 0;
                float[] distances = new float[classes];
                for (int c = 0; c < classes; c++) {
                    for (int j = 0; j < size; j++) {
                        float difference = theta.get(c * size + j) - x.get(i * size + j);
                        distances[c] += difference * difference;
                    }
                    best = distances[c] < distances[best] ? c : best;
                }
                int label = (int) y.getLong(8 * i);
                loss += w.get(i) * distances[label];
                correct += best == label ? w.get(i) : 0;
                weights += w.get(i);
            }
            return new Tensor[] {number(loss), number(correct), number(weightless ? 0 : weights)};
        }

        private static Tensor number(float value) {
            Tensor scalar = Tensor.zeros(Tensor.Type.FLOAT32);
            scalar.data().putFloat(value);
            return scalar;
        }

        @Override
        public void close() { }
    }
}
