package org.sedge.onnxruntime;

import ai.onnxruntime.OrtEnvironment;

import org.sedge.edge.backends.BackendException;
import org.sedge.edge.backends.Program;
import org.sedge.edge.backends.Tensor;

import java.io.File;
import java.util.Arrays;

/**
 * Loads each file as an ONNX program. Runs it twice with small inputs, then with a theta that is too long. Prints the
 * outputs, the errors, and how many of the runtime's objects were not closed.
 */
public final class RunGraph {
    private RunGraph() {}

    public static void main(String[] words) {
        for (String word : words) {
            try (Program program = new OnnxRuntime().load(new File(word), null)) {
                Tensor x = floats(3);
                Tensor y = Tensor.zeros(Tensor.Type.INT64, 1);
                y.data().putLong(0, 4);
                Tensor[] first = program.run(floats(1, 2), x, y, floats(5));
                program.run(floats(7, 8), x, y, floats(9));
                for (Tensor output : first) {
                    float[] values = new float[output.data().remaining() / 4];
                    output.data().asFloatBuffer().get(values);
                    System.out.println(Arrays.toString(output.shape()) + " " + Arrays.toString(values));
                }
                program.run(floats(1, 2, 3), x, y, floats(5));
            } catch (BackendException error) {
                System.out.println(error.getMessage());
            }
        }
        System.out.println(OrtEnvironment.open);
    }

    private static Tensor floats(float... values) {
        Tensor tensor = Tensor.zeros(Tensor.Type.FLOAT32, values.length);
        tensor.data().asFloatBuffer().put(values);
        return tensor;
    }
}
