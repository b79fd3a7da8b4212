package org.sedge.edge.backends;

import java.io.File;
import java.nio.FloatBuffer;

/** The model of rule T13 (protocol/spec/training.md): a line, computed row by row in float32. */
public final class Line implements Backend {
    @Override
    public String name() {
        return "line";
    }

    @Override
    public Program load(File file, String method) {
        return new Program() {
            @Override
            public Tensor[] run(Tensor... inputs) {
                float[] theta = floats(inputs[0]);
                float[] x = floats(inputs[1]);
                float[] y = floats(inputs[2]);
                float[] w = floats(inputs[3]);
                return method.equals("gradient") ? gradient(theta, x, y, w) : evaluated(theta, x, y, w);
            }

            @Override
            public void close() { }
        };
    }

    private static float error(float[] theta, float[] x, float[] y, int row) {
        float output = x[3 * row] * theta[0] + x[3 * row + 1] * theta[1] + x[3 * row + 2] * theta[2] + theta[3];
        return output - y[row];
    }

    private static Tensor[] gradient(float[] theta, float[] x, float[] y, float[] w) {
        float[] gradient = new float[5];
        float loss = 0;
        float seen = 0;
        float total = 0;
        for (int row = 0; row < y.length; row++) {
            float error = error(theta, x, y, row);
            total += w[row];
            loss += w[row] * (error * error);
            for (int j = 0; j < 3; j++) {
                gradient[j] += w[row] * (2 * error * x[3 * row + j]);
            }
            gradient[3] += w[row] * (2 * error);
            seen += w[row] * x[3 * row];
        }
        for (int j = 0; j < gradient.length; j++) {
            gradient[j] /= total;
        }
        return new Tensor[] {tensor(gradient), tensor(loss / total), tensor(0.5f * theta[4] + 0.5f * (seen / total))};
    }

    private static Tensor[] evaluated(float[] theta, float[] x, float[] y, float[] w) {
        float squares = 0;
        float sizes = 0;
        float weights = 0;
        for (int row = 0; row < y.length; row++) {
            float error = error(theta, x, y, row);
            squares += w[row] * (error * error);
            sizes += w[row] * Math.abs(error);
            weights += w[row];
        }
        return new Tensor[] {tensor(squares), tensor(sizes), tensor(weights)};
    }

    private static float[] floats(Tensor tensor) {
        FloatBuffer data = tensor.data().asFloatBuffer();
        float[] found = new float[data.remaining()];
        data.get(found);
        return found;
    }

    private static Tensor tensor(float... values) {
        Tensor made = Tensor.zeros(Tensor.Type.FLOAT32, values.length);
        made.data().asFloatBuffer().put(values);
        return made;
    }
}
