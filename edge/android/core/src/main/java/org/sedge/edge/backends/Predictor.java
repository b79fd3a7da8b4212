package org.sedge.edge.backends;

import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.training.Batches;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Signature;

import java.util.Arrays;

/** Runs a bundle's program {@code predict} with the current model. Not thread-safe. */
public final class Predictor implements AutoCloseable {
    private final Bundle bundle;
    private final Program program;
    private final Tensor theta;
    private final Tensor x;

    Predictor(Bundle bundle, Program program) {
        this.bundle = bundle;
        this.program = program;
        theta = Tensor.zeros(Tensor.Type.FLOAT32, bundle.layout.size);
        x = Buffers.rows(bundle.input, bundle.batchSize);
    }

    /** Sets the model's parameters theta (n,). */
    public void put(float[] model) {
        theta.data().asFloatBuffer().put(model);
    }

    /** Returns the model's parameters theta (n,). */
    public float[] theta() {
        float[] model = new float[bundle.layout.size];
        theta.data().asFloatBuffer().get(model);
        return model;
    }

    /**
     * Returns the outputs, one row for each row of inputs. The inputs must fit the bundle.
     *
     * @throws CodecError if the program fails
     */
    public Rows predict(Rows inputs) throws SedgeException {
        float[] outputs = null;
        long[] shape = null;
        for (Batches.Batch batch : Batches.inOrder(inputs.count, bundle.batchSize)) {
            Buffers.put(inputs, batch.rows, x.data());
            Tensor made = run();
            long[] row = Arrays.copyOfRange(made.shape(), 1, made.shape().length);
            int size = made.data().remaining() / 4 / bundle.batchSize;
            if (outputs == null) {
                outputs = new float[Math.multiplyExact(inputs.count, size)];
                shape = row;
            }
            if (!Arrays.equals(row, shape)) {
                throw failed("its outputs are of several shapes", null);
            }
            made.data().asFloatBuffer().get(outputs, batch.rows[0] * size, batch.used * size);
        }
        return new Rows(outputs, shape);
    }

    private Tensor run() throws CodecError {
        try {
            Tensor[] found = program.run(theta, x);
            boolean fits = found.length > 0 && found[0].type() == Tensor.Type.FLOAT32 && found[0].shape().length > 0
                    && found[0].shape()[0] == bundle.batchSize;
            if (!fits) {
                throw failed("its output is not float32 (" + bundle.batchSize + ", ...)", null);
            }
            return found[0];
        } catch (BackendException error) {
            throw failed(error.getMessage(), error);
        }
    }

    private CodecError failed(String why, BackendException cause) {
        return new CodecError("bundle '" + bundle.name + "': program '" + Signature.PREDICT.program + "' failed: " + why,
                cause);
    }

    @Override
    public void close() {
        program.close();
    }
}
