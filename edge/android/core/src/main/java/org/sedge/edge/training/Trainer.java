package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.TrainingDiverged;
import org.sedge.edge.backends.BackendException;
import org.sedge.edge.backends.Program;
import org.sedge.edge.backends.Tensor;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Layout;
import org.sedge.edge.wire.Messages.Metrics;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Struct;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.BooleanSupplier;

/** Trains and evaluates with a bundle's programs (spec/training.md, T4 to T8). */
final class Trainer implements AutoCloseable {
    /** A trained model, the mean loss over its last epoch, and the number of steps. */
    static final class Trained {
        final float[] theta;
        final double loss;
        final long steps;

        Trained(float[] theta, double loss, long steps) {
            this.theta = theta;
            this.loss = loss;
            this.steps = steps;
        }
    }

    /** Where a training was stopped: its steps, the losses of the unfinished epoch, theta and the optimizer's state. */
    @SuppressWarnings("serial")
    static final class Stopped extends Exception {
        final transient Progress progress;

        Stopped(Progress progress) {
            super("stopped after " + progress.steps + " steps", null, false, false);
            this.progress = progress;
        }
    }

    /** What {@link Stopped} brings, and a training goes on from. */
    static final class Progress {
        final long steps;
        final List<Double> losses;
        final List<float[]> vectors;

        Progress(long steps, List<Double> losses, List<float[]> vectors) {
            this.steps = steps;
            this.losses = losses;
            this.vectors = vectors;
        }
    }

    private final Bundle bundle;
    private final Program gradient;
    private final Program evaluate;
    private final Tensor theta;
    private final Tensor x;
    private final Tensor y;
    private final Tensor w;
    private final Tensor noise;

    Trainer(Bundle bundle, Program gradient, Program evaluate) {
        this.bundle = bundle;
        this.gradient = gradient;
        this.evaluate = evaluate;
        long[] shape = new long[1 + bundle.input.shape.length];
        shape[0] = bundle.batchSize;
        System.arraycopy(bundle.input.shape, 0, shape, 1, bundle.input.shape.length);
        theta = Tensor.zeros(Tensor.Type.FLOAT32, bundle.layout.size);
        x = Tensor.zeros(Tensor.Type.FLOAT32, shape);
        y = Tensor.zeros(Tensor.Type.INT64, bundle.batchSize);
        w = Tensor.zeros(Tensor.Type.FLOAT32, bundle.batchSize);
        noise = Tensor.zeros(Tensor.Type.FLOAT32, bundle.noise);
    }

    /** Mean loss and accuracy of theta (n,). */
    Struct evaluate(float[] model, Examples examples) throws CodecError, TrainingDiverged {
        double[] sums = new double[3]; // loss, correct, weight
        for (Batches.Batch batch : Batches.inOrder(examples.count(), bundle.batchSize)) {
            fill(model, examples, batch);
            float[][] found = run(evaluate, 1, 1, 1);
            for (int i = 0; i < 3; i++) {
                sums[i] += found[i][0];
            }
        }
        double loss = sums[0] / sums[2];
        if (Double.isNaN(loss) || Double.isInfinite(loss)) {
            throw new TrainingDiverged("evaluation: the mean loss is " + loss);
        }
        return Metrics.SCHEMA.empty().with(Metrics.LOSS, loss).with(Metrics.ACCURACY, sums[1] / sums[2])
                .with(Metrics.NUM_EXAMPLES, (long) examples.count());
    }

    /**
     * Trains from {@code start} (n,), which is not changed.
     *
     * @param anchor where prox pulls, (n,)
     * @param correction added to every gradient, (n,), or null
     * @param resume where an earlier attempt was stopped, or null
     */
    Trained train(float[] start, Examples examples, Struct training, long seed, float[] anchor, float[] correction,
            Progress resume, BooleanSupplier stopped) throws CodecError, TrainingDiverged, Stopped {
        Optimizer optimizer = new Optimizer(training, start.length);
        float[] model = start.clone();
        long made = 0;
        if (resume != null) {
            made = resume.steps;
            optimizer.steps = made;
            System.arraycopy(resume.vectors.get(0), 0, model, 0, model.length);
            for (int i = 0; i < optimizer.vectors.length; i++) {
                System.arraycopy(resume.vectors.get(1 + i), 0, optimizer.vectors[i], 0, model.length);
            }
        }
        boolean pads = !bundle.usesBatchStatistics && bundle.noise == 0;
        Batches batches = new Batches(
                examples.count(), bundle.batchSize, training.get(Training.LAST_BATCH), pads, seed);
        long step = 0;
        double loss = Double.NaN;
        for (long epoch = 0; epoch < training.get(Training.LOCAL_EPOCHS); epoch++) {
            List<Double> losses = new ArrayList<>();
            double weighted = 0;
            double weights = 0;
            for (Batches.Batch batch : batches.epoch()) {
                double found;
                if (step < made) {
                    long ago = made - step;
                    found = ago <= resume.losses.size()
                            ? resume.losses.get((int) (resume.losses.size() - ago)) : Double.NaN;
                } else {
                    if (stopped.getAsBoolean()) {
                        List<float[]> vectors = new ArrayList<>(Arrays.asList(optimizer.vectors));
                        vectors.add(0, model);
                        throw new Stopped(new Progress(step, losses, vectors));
                    }
                    fill(model, examples, batch);
                    fillNoise(seed, step);
                    found = advance(model, start, training, anchor, correction, optimizer);
                    requireFinite(found, "step " + (step + 1) + ": the loss");
                }
                step++;
                losses.add(found);
                weighted += found * batch.used;
                weights += batch.used;
            }
            loss = weighted / weights;
            for (float value : model) {
                requireFinite(value, "step " + step + ": a parameter");
            }
        }
        return new Trained(model, loss, step);
    }

    /** One step in place; the loss. */
    private double advance(float[] model, float[] start, Struct training, float[] anchor, float[] correction,
            Optimizer optimizer) throws CodecError {
        int statistics = 0;
        for (Layout.Tensor tensor : bundle.layout.tensors) {
            statistics += tensor.statistic ? tensor.to - tensor.from : 0;
        }
        float[][] found = statistics > 0 ? run(gradient, model.length, 1, statistics) : run(gradient, model.length, 1);
        float[] g = found[0];
        float prox = training.get(Training.PROX).floatValue();
        for (int i = 0; i < g.length && (prox > 0 || correction != null); i++) {
            g[i] += prox > 0 ? prox * (model[i] - anchor[i]) : 0;
            g[i] += correction == null ? 0 : correction[i];
        }
        List<Layout.Tensor> frozen = bundle.layout.named(training.get(Training.FREEZE));
        for (Layout.Tensor tensor : bundle.layout.tensors) {
            if (tensor.statistic || frozen.contains(tensor)) {
                Arrays.fill(g, tensor.from, tensor.to, 0);
            }
        }
        optimizer.step(model, g);
        int at = 0;
        for (Layout.Tensor tensor : bundle.layout.tensors) {
            if (tensor.statistic) {
                System.arraycopy(found[2], at, model, tensor.from, tensor.to - tensor.from);
                at += tensor.to - tensor.from;
            }
        }
        for (Layout.Tensor tensor : frozen) { // weight decay moves them without a gradient
            System.arraycopy(start, tensor.from, model, tensor.from, tensor.to - tensor.from);
        }
        return found[1][0];
    }

    private static void requireFinite(double value, String what) throws TrainingDiverged {
        if (Double.isNaN(value) || Double.isInfinite(value)) {
            throw new TrainingDiverged(what + " is " + value);
        }
    }

    private void fill(float[] model, Examples examples, Batches.Batch batch) {
        theta.data().asFloatBuffer().put(model);
        ByteBuffer xs = x.data();
        ByteBuffer ys = y.data();
        ByteBuffer ws = w.data();
        for (int i = 0; i < batch.rows.length; i++) {
            xs.asFloatBuffer().put(examples.inputs, batch.rows[i] * examples.rowSize, examples.rowSize);
            xs.position(xs.position() + 4 * examples.rowSize);
            ys.putLong(examples.labels[batch.rows[i]]);
            ws.putFloat(i < batch.used ? 1 : 0);
        }
    }

    /** The random numbers of a step (T12). */
    private void fillNoise(long seed, long step) {
        if (bundle.noise == 0) {
            return;
        }
        long words = (bundle.noise + 3) / 4;
        Pcg64 random = new Pcg64(seed | Long.MIN_VALUE);
        random.skip(step * words);
        ByteBuffer out = noise.data();
        long word = 0;
        for (int i = 0; i < bundle.noise; i++) {
            word = i % 4 == 0 ? random.next64() : word >>> 16;
            out.putFloat((word & 0xffff) * 0x1p-16f);
        }
    }

    /** The program's outputs, which must have these sizes. */
    private float[][] run(Program program, int... sizes) throws CodecError {
        try {
            Tensor[] found = program == gradient && bundle.noise > 0
                    ? program.run(theta, x, y, w, noise) : program.run(theta, x, y, w);
            float[][] outputs = new float[sizes.length][];
            for (int i = 0; i < sizes.length; i++) {
                boolean fits = i < found.length && found[i].type() == Tensor.Type.FLOAT32
                        && found[i].data().remaining() == 4L * sizes[i];
                if (!fits) {
                    throw new CodecError("bundle '" + bundle.name + "': output " + i + " of " + found.length
                            + " is not float32 (" + sizes[i] + ",)");
                }
                outputs[i] = new float[sizes[i]];
                found[i].data().asFloatBuffer().get(outputs[i]);
            }
            return outputs;
        } catch (BackendException error) {
            throw new CodecError("bundle '" + bundle.name + "': a program failed: " + error.getMessage(), error);
        }
    }

    @Override
    public void close() {
        gradient.close();
        evaluate.close();
    }
}
