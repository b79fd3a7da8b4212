package org.sedge.edge.backends;

import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.TrainingDiverged;
import org.sedge.edge.training.Batches;
import org.sedge.edge.training.Loop;
import org.sedge.edge.training.TrainRequest;
import org.sedge.edge.training.Trained;
import org.sedge.edge.training.Trainer;
import org.sedge.edge.training.TrainingState;
import org.sedge.edge.training.TrainingStopped;
import org.sedge.edge.training.steppers.Differentiate;
import org.sedge.edge.training.steppers.Single;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Layout;
import org.sedge.edge.wire.Messages.Metrics;
import org.sedge.edge.wire.Refusals;
import org.sedge.edge.wire.Signature;

import java.util.function.BooleanSupplier;

/** Trains with a bundle's programs, on any runtime (spec/training.md, T4 to T8). */
final class BundleTrainer implements Trainer {
    private final Bundle bundle;
    /** The program "gradient", or "guided" if the order asks for the guided loss. */
    private final Program gradient;
    private final Program evaluate;
    private final Buffers buffers;
    private final int statistics;

    BundleTrainer(Bundle bundle, Program gradient, Program evaluate) {
        this.bundle = bundle;
        this.gradient = gradient;
        this.evaluate = evaluate;
        buffers = new Buffers(bundle);
        int count = 0;
        for (Layout.Tensor tensor : bundle.layout.tensors) {
            count += tensor.statistic ? tensor.to - tensor.from : 0;
        }
        statistics = count;
    }

    @Override
    public Trained train(TrainRequest request, Examples examples, BooleanSupplier stopped, TrainingState resume)
            throws CodecError, TrainingDiverged, TrainingStopped {
        Batches batches = new Batches(examples.count(), bundle.batchSize, request.training.lastBatch,
                bundle.paddingIsSafe(), request.seed);
        Differentiate differentiate = new Gradients(examples, request);
        Single stepper = new Single(differentiate, bundle.layout, request);
        return new Loop(stepper, request.training, batches, stopped, resume).run(differentiate);
    }

    @Override
    public Metrics evaluate(float[] theta, Examples examples) throws CodecError, TrainingDiverged {
        double[] sums = new double[3]; // sums of the losses, the metrics and the weights
        for (Batches.Batch batch : Batches.inOrder(examples.count(), bundle.batchSize)) {
            buffers.fill(examples, batch);
            float[][] found = run(evaluate, Signature.EVALUATE, theta);
            for (int i = 0; i < 3; i++) {
                sums[i] += found[i][0];
            }
        }
        if (sums[2] == 0) {
            throw new TrainingDiverged(Refusals.nothingCounted(examples.count()));
        }
        Loop.requireFinite(sums[0] / sums[2], "evaluation: the mean loss");
        double metric = bundle.metric.reported(sums[1] / sums[2]);
        Loop.requireFinite(metric, "evaluation: the mean metric");
        return Metrics.SCHEMA.empty().with(Metrics.LOSS, sums[0] / sums[2]).with(Metrics.METRIC, metric)
                .with(Metrics.NUM_EXAMPLES, (long) examples.count());
    }

    /** Runs the program "gradient" or "guided" on the batches of one training phase. */
    private final class Gradients implements Differentiate {
        private final Examples examples;
        private final long seed;
        private final Signature signature;

        Gradients(Examples examples, TrainRequest request) {
            this.examples = examples;
            seed = request.seed;
            boolean isGuided = request.guidance != null;
            signature = isGuided ? Signature.guided(statistics > 0, bundle.noise > 0, bundle.guide)
                    : Signature.gradient(statistics > 0, bundle.noise > 0);
            if (isGuided) {
                buffers.put(request.guidance);
            }
        }

        @Override
        public void feed(long step, Batches.Batch batch) {
            buffers.fill(examples, batch);
            buffers.draw(seed, step);
        }

        @Override
        public Differentiated at(float[] theta) throws CodecError {
            float[][] found = run(gradient, signature, theta);
            return new Differentiated(found[0], found[1][0], statistics > 0 ? found[2] : null);
        }
    }

    /** Returns the number of elements of a program's output. */
    private int size(String output) {
        return output.equals("gradient") ? bundle.layout.size : output.equals("statistics") ? statistics : 1;
    }

    /** Runs a program at theta (n,) on the batch in the buffers. Returns its outputs, whose sizes have been checked. */
    private float[][] run(Program program, Signature signature, float[] theta) throws CodecError {
        String where = "bundle '" + bundle.name + "': program '" + signature.program + "'";
        try {
            buffers.put(theta);
            Tensor[] found = program.run(buffers.inputs(signature));
            float[][] outputs = new float[signature.outputs.size()][];
            for (int i = 0; i < outputs.length; i++) {
                int size = size(signature.outputs.get(i));
                boolean fits = i < found.length && found[i].type() == Tensor.Type.FLOAT32
                        && found[i].data().remaining() == 4L * size;
                if (!fits) {
                    throw new CodecError(where + ": output " + i + " of " + found.length + " is not float32 ("
                            + size + ",)");
                }
                outputs[i] = new float[size];
                found[i].data().asFloatBuffer().get(outputs[i]);
            }
            return outputs;
        } catch (BackendException error) {
            throw new CodecError(where + " failed: " + error.getMessage(), error);
        }
    }

    @Override
    public void close() {
        gradient.close();
        evaluate.close();
    }
}
