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

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.BooleanSupplier;

/** Trains and evaluates with a bundle's programs (spec/training.md, T4 to T8). */
final class Trainer implements AutoCloseable {
    /** A trained model, the mean loss over its last epoch, the number of steps, and the optimizer at the end. */
    static final class Trained {
        final float[] theta;
        /** What the device predicts with: theta, or the mean of the last models (X23). */
        final float[] model;
        final double loss;
        final long steps;
        final Optimizer optimizer;

        Trained(float[] theta, float[] mean, double loss, long steps, Optimizer optimizer) {
            this.theta = theta;
            this.model = mean == null ? theta : mean;
            this.loss = loss;
            this.steps = steps;
            this.optimizer = optimizer;
        }
    }

    /** A training was stopped on purpose. */
    @SuppressWarnings("serial")
    static final class Stopped extends Exception {
        final transient Progress progress;

        Stopped(String text, Progress progress) {
            super(text, null, false, false);
            this.progress = progress;
        }
    }

    /**
     * Where a training stopped: its steps, the losses of the unfinished epoch, theta, the optimizer's vectors, and the
     * mean where it has one. The optimizer had made {@code optimizerSteps}, which are more than the training's where its state is kept.
     */
    static final class Progress {
        final long steps;
        final long optimizerSteps;
        final List<Double> losses;
        final List<float[]> vectors;

        Progress(long steps, long optimizerSteps, List<Double> losses, List<float[]> vectors) {
            this.steps = steps;
            this.optimizerSteps = optimizerSteps;
            this.losses = losses;
            this.vectors = vectors;
        }
    }

    private final Bundle bundle;
    private final Program gradient;
    private final Program evaluate;
    private final Buffers buffers;
    private final int statistics;

    Trainer(Bundle bundle, Program gradient, Program evaluate) {
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

    /** Mean loss and metric of theta (n,). */
    Metrics evaluate(float[] model, Examples examples) throws CodecError, TrainingDiverged {
        double[] sums = new double[3]; // loss, metric, weight
        for (Batches.Batch batch : Batches.inOrder(examples.count(), bundle.batchSize)) {
            float[][] found = run(evaluate, "evaluate", buffers.fill(model, examples, batch), 1, 1, 1);
            for (int i = 0; i < 3; i++) {
                sums[i] += found[i][0];
            }
        }
        requireFinite(sums[0] / sums[2], "evaluation: the mean loss");
        requireFinite(sums[1] / sums[2], "evaluation: the mean metric");
        return Metrics.SCHEMA.empty().with(Metrics.LOSS, sums[0] / sums[2]).with(Metrics.METRIC, sums[1] / sums[2])
                .with(Metrics.NUM_EXAMPLES, (long) examples.count());
    }

    /**
     * Trains from {@code start} (n,), which is not changed.
     *
     * @param anchor where prox pulls, (n,)
     * @param correction added to every gradient, (n,), or null
     * @param resume where an earlier attempt was stopped, or null
     */
    Trained train(float[] start, Examples examples, Training training, long seed, float[] anchor, float[] correction,
            Progress resume, BooleanSupplier stopped) throws CodecError, TrainingDiverged, Stopped {
        Optimizer optimizer = new Optimizer(training, start.length);
        float[] model = start.clone();
        long made = resume == null ? 0 : resume.steps;
        if (resume != null) {
            optimizer.steps = resume.optimizerSteps;
            System.arraycopy(resume.vectors.get(0), 0, model, 0, model.length);
            for (int i = 0; i < optimizer.vectors.length; i++) {
                System.arraycopy(resume.vectors.get(1 + i), 0, optimizer.vectors[i], 0, model.length);
            }
        }
        float[] mean = training.average == 0 ? null
                : made == 0 ? new float[model.length] : resume.vectors.get(1 + optimizer.vectors.length).clone();
        Batches batches = new Batches(examples.count(), bundle.batchSize, training.lastBatch,
                bundle.paddingIsSafe(), seed);
        long step = 0;
        double loss = Double.NaN;
        long epochs = training.localEpochs;
        for (long epoch = 0; epoch < epochs; epoch++) {
            String where = "epoch " + (epoch + 1) + " of " + epochs + ", step ";
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
                        if (mean != null) {
                            vectors.add(mean);
                        }
                        throw new Stopped(where + (step + 1) + ": stopped",
                                new Progress(step, optimizer.steps, losses, vectors));
                    }
                    Tensor[] inputs = buffers.fill(model, examples, batch, seed, step);
                    long total = epochs * batches.count();
                    double rate = Optimizer.rate(training, step, total);
                    found = advance(inputs, model, start, training, anchor, correction, optimizer, rate);
                    requireFinite(found, where + (step + 1) + ": the loss");
                    if (mean != null) {
                        addToMean(mean, model, training.average, step, total);
                    }
                }
                step++;
                losses.add(found);
                weighted += found * batch.used;
                weights += batch.used;
            }
            loss = weighted / weights;
            int bad = 0;
            for (float value : model) {
                bad += Float.isNaN(value) || Float.isInfinite(value) ? 1 : 0;
            }
            if (bad > 0) {
                throw new TrainingDiverged(where + step + ": " + bad + " parameters are not finite");
            }
        }
        return new Trained(model, mean, loss, step, optimizer);
    }

    /** Takes the model after a step, from 0, of so many into the mean of the last models (X23). */
    private static void addToMean(float[] mean, float[] model, double share, long step, long steps) {
        long number = step + 1 - (steps - Math.max(1, (long) (share * steps)));
        float weight = (float) (1.0 / number);
        for (int i = 0; i < mean.length && number > 0; i++) {
            mean[i] += (model[i] - mean[i]) * weight;
        }
    }

    /** One step in place; the loss. */
    private double advance(Tensor[] inputs, float[] model, float[] start, Training training, float[] anchor,
            float[] correction, Optimizer optimizer, double rate) throws CodecError {
        float[][] found = statistics > 0 ? run(gradient, "gradient", inputs, model.length, 1, statistics)
                : run(gradient, "gradient", inputs, model.length, 1);
        float[] g = found[0];
        float prox = (float) training.prox;
        for (int i = 0; i < g.length && (prox > 0 || correction != null); i++) {
            g[i] += prox > 0 ? prox * (model[i] - anchor[i]) : 0;
            g[i] += correction == null ? 0 : correction[i];
        }
        List<Layout.Tensor> frozen = bundle.layout.named(training.freeze, "training.freeze");
        for (Layout.Tensor tensor : bundle.layout.tensors) {
            if (tensor.statistic || frozen.contains(tensor)) {
                Arrays.fill(g, tensor.from, tensor.to, 0);
            }
        }
        optimizer.step(model, g, rate);
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
            throw new TrainingDiverged(what + " is " + (Double.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf"));
        }
    }

    /** The program's outputs, which must have these sizes. */
    private float[][] run(Program program, String name, Tensor[] inputs, int... sizes) throws CodecError {
        String where = "bundle '" + bundle.name + "': program '" + name + "'";
        try {
            Tensor[] found = program.run(inputs);
            float[][] outputs = new float[sizes.length][];
            for (int i = 0; i < sizes.length; i++) {
                boolean fits = i < found.length && found[i].type() == Tensor.Type.FLOAT32
                        && found[i].data().remaining() == 4L * sizes[i];
                if (!fits) {
                    throw new CodecError(where + ": output " + i + " of " + found.length + " is not float32 ("
                            + sizes[i] + ",)");
                }
                outputs[i] = new float[sizes[i]];
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
