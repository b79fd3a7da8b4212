package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.backends.Tensor;
import org.sedge.edge.wire.Bundle;

import java.nio.ByteBuffer;
import java.util.Locale;

/** The inputs of a bundle's programs, always in the same memory. */
final class Buffers {
    private final Tensor theta;
    private final Tensor x;
    private final Tensor y;
    private final Tensor w;
    private final Tensor noise;

    Buffers(Bundle bundle) {
        theta = Tensor.zeros(Tensor.Type.FLOAT32, bundle.layout.size);
        x = rows(bundle.input, bundle.batchSize);
        y = bundle.target == null ? x : rows(bundle.target, bundle.batchSize);
        w = Tensor.zeros(Tensor.Type.FLOAT32, bundle.batchSize);
        noise = Tensor.zeros(Tensor.Type.FLOAT32, bundle.noise);
    }

    private static Tensor rows(Bundle.Row row, int count) {
        long[] shape = new long[1 + row.shape.length];
        shape[0] = count;
        System.arraycopy(row.shape, 0, shape, 1, row.shape.length);
        return Tensor.zeros(Tensor.Type.valueOf(row.dtype.toUpperCase(Locale.ROOT)), shape);
    }

    /** The inputs of {@code evaluate} for a batch, valid until the next. */
    Tensor[] fill(float[] model, Examples examples, Batches.Batch batch) {
        theta.data().asFloatBuffer().put(model);
        put(examples.inputs, batch.rows, x.data());
        if (y != x) {
            put(examples.targets, batch.rows, y.data());
        }
        ByteBuffer weights = w.data();
        for (int i = 0; i < batch.rows.length; i++) {
            weights.putFloat(i < batch.used ? 1 : 0);
        }
        return new Tensor[] {theta, x, y, w};
    }

    /** The inputs of {@code gradient}: also the random numbers of a step, where the model takes any (T12). */
    Tensor[] fill(float[] model, Examples examples, Batches.Batch batch, long seed, long step) {
        Tensor[] filled = fill(model, examples, batch);
        ByteBuffer out = noise.data();
        int count = out.remaining() / Float.BYTES;
        if (count == 0) {
            return filled;
        }
        Pcg64 random = new Pcg64(seed | Long.MIN_VALUE);
        random.skip(step * ((count + 3) / 4));
        long word = 0;
        for (int i = 0; i < count; i++) {
            word = i % 4 == 0 ? random.next64() : word >>> 16;
            out.putFloat((word & 0xffff) * 0x1p-16f);
        }
        return new Tensor[] {theta, x, y, w, noise};
    }

    private static void put(Rows rows, int[] chosen, ByteBuffer out) {
        for (int row : chosen) {
            rows.put(row, out);
        }
    }
}
