package org.sedge.edge.backends;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.training.Batches;
import org.sedge.edge.training.CounterStream;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Signature;

import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

/** Holds the inputs of a bundle's programs. The memory is allocated once and then reused. */
final class Buffers {
    private final Map<String, Tensor> tensors = new HashMap<>();

    Buffers(Bundle bundle) {
        Tensor x = rows(bundle.input, bundle.batchSize);
        tensors.put("theta", Tensor.zeros(Tensor.Type.FLOAT32, bundle.layout.size));
        tensors.put("x", x);
        tensors.put("y", bundle.target == null ? x : rows(bundle.target, bundle.batchSize));
        tensors.put("w", Tensor.zeros(Tensor.Type.FLOAT32, bundle.batchSize));
        tensors.put("noise", Tensor.zeros(Tensor.Type.FLOAT32, bundle.noise));
    }

    static Tensor rows(Bundle.Row row, int count) {
        long[] shape = new long[1 + row.shape.length];
        shape[0] = count;
        System.arraycopy(row.shape, 0, shape, 1, row.shape.length);
        return Tensor.zeros(Tensor.Type.valueOf(row.dtype.toUpperCase(Locale.ROOT)), shape);
    }

    /** Stores the model's parameters theta (n,). */
    void put(float[] model) {
        tensors.get("theta").data().asFloatBuffer().put(model);
    }

    /**
     * Stores the additional inputs of a guided loss, keyed by their names in the loss's program. Memory for them is
     * allocated only if there are any.
     */
    void put(Map<String, float[]> guidance) {
        for (Map.Entry<String, float[]> entry : guidance.entrySet()) {
            String name = entry.getKey();
            float[] values = entry.getValue();
            if (!tensors.containsKey(name)) {
                tensors.put(name, Tensor.zeros(Tensor.Type.FLOAT32, values.length));
            }
            tensors.get(name).data().asFloatBuffer().put(values);
        }
    }

    /** Stores the examples and weights of a batch. */
    void fill(Examples examples, Batches.Batch batch) {
        put(examples.inputs, batch.rows, tensors.get("x").data());
        if (tensors.get("y") != tensors.get("x")) {
            put(examples.targets, batch.rows, tensors.get("y").data());
        }
        ByteBuffer weights = tensors.get("w").data();
        for (int i = 0; i < batch.rows.length; i++) {
            weights.putFloat(i < batch.used ? 1 : 0);
        }
    }

    /** Draws the random numbers for a step, if the model uses any (T12). */
    void draw(long seed, long step) {
        FloatBuffer out = tensors.get("noise").data().asFloatBuffer();
        if (out.hasRemaining()) {
            out.put(CounterStream.noise(seed, step, out.remaining()));
        }
    }

    /**
     * Returns a program's inputs, made of the values that were stored last. They are valid until the next value is
     * stored.
     */
    Tensor[] inputs(Signature signature) {
        Tensor[] found = new Tensor[signature.inputs.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = tensors.get(signature.inputs.get(i));
        }
        return found;
    }

    static void put(Rows rows, int[] chosen, ByteBuffer out) {
        for (int row : chosen) {
            rows.put(row, out);
        }
    }
}
