package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.SedgeException.OutOfMemory;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.SedgeException.TrainingDiverged;
import org.sedge.edge.codec.Coding;
import org.sedge.edge.codec.Compression;
import org.sedge.edge.codec.Selection;
import org.sedge.edge.codec.SparseVector;
import org.sedge.edge.rounds.Blobs;
import org.sedge.edge.rounds.GlobalModel;
import org.sedge.edge.training.Trainer.Progress;
import org.sedge.edge.training.Trainer.Trained;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Layout.Tensor;
import org.sedge.edge.wire.Messages.Codec;
import org.sedge.edge.wire.Messages.Metrics;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Report;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Messages.Work;
import org.sedge.edge.wire.MsgPack;
import org.sedge.edge.wire.Struct;
import org.sedge.edge.wire.Update;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.function.BooleanSupplier;

/**
 * Does one order: start vector, evaluation, training, evaluation, coded update (spec/training.md).
 *
 * <p>It reads and writes only blobs. Until the core commits the outcome, a crash leaves nothing but blobs that nobody
 * names, and these are collected.
 */
public final class JobRunner {
    private final Blobs blobs;
    private final Programs programs;
    private final Examples train;
    private final Examples test;

    public JobRunner(Blobs blobs, Programs programs, Examples train, Examples test) {
        this.blobs = blobs;
        this.programs = programs;
        this.train = train;
        this.test = test;
    }

    /** Does the job; throws {@code JobStopped} once {@code stopped} says so. */
    public Outcome run(Job job, BooleanSupplier stopped) throws SedgeException, JobStopped {
        String where = "run " + job.order.get(Order.RUN) + ", round " + job.order.get(Order.ROUND);
        try {
            return done(job, stopped);
        } catch (IllegalArgumentException error) { // a tensor that the layout lacks
            throw new CodecError(where + ": " + error.getMessage(), error);
        } catch (OutOfMemoryError error) {
            throw new OutOfMemory(where + ": " + error.getMessage() + ", expected room for the job", error);
        }
    }

    private Outcome done(Job job, BooleanSupplier stopped) throws SedgeException, JobStopped {
        long began = System.nanoTime();
        Struct order = job.order;
        Struct work = order.get(Order.WORK);
        Bundle bundle = Bundle.unpack(blobs.read(order.get(Order.BUNDLE).sha256));
        check(train, bundle);
        check(test, bundle);
        List<Tensor> kept = bundle.layout.named(work.get(Work.KEEP));
        List<Struct> trainings = new ArrayList<>(work.get(Work.THEN));
        Struct first = work.get(Work.TRAINING);
        trainings.add(0, first == null ? Training.SCHEMA.empty() : first);
        for (Struct training : trainings) {
            bundle.layout.named(training.get(Training.FREEZE));
        }
        float[] start = start(job, bundle.layout.size, kept);
        float[] correction = null;
        if (order.get(Order.CORRECTION) != null) {
            correction = new float[start.length];
            SparseVector.decode(blobs.read(order.get(Order.CORRECTION).sha256), start.length).writeTo(correction);
        }
        try (Trainer trainer = programs.open(bundle)) {
            byte[] same = jobHash(job);
            Struct earlier = job.checkpoint == null ? null : Checkpoint.decode(blobs.read(job.checkpoint), same);
            Struct before = earlier == null ? trainer.evaluate(start, test) : earlier.get(Checkpoint.BEFORE);
            double spent = earlier == null ? 0 : earlier.get(Checkpoint.SECONDS);
            long steps = earlier == null ? 0 : earlier.get(Checkpoint.EARLIER_STEPS);
            Progress resume = earlier == null ? null : Checkpoint.progress(earlier);
            Trained trained = new Trained(start, Double.NaN, 0);
            for (int phase = earlier == null ? 0 : earlier.get(Checkpoint.PHASE).intValue();
                    phase < trainings.size(); phase++) {
                float[] from = resume == null ? trained.theta : resume.vectors.get(0);
                try {
                    trained = trainer.train(from, train, trainings.get(phase), phaseSeed(order.get(Order.SEED), phase),
                            start, correction, resume, stopped);
                } catch (Trainer.Stopped stop) {
                    Struct checkpoint = Checkpoint.SCHEMA.empty().with(Checkpoint.JOB, same)
                            .with(Checkpoint.BEFORE, before).with(Checkpoint.PHASE, (long) phase)
                            .with(Checkpoint.EARLIER_STEPS, steps)
                            .with(Checkpoint.SECONDS, spent + seconds(began));
                    throw new JobStopped(stop.getMessage(), kept(Checkpoint.with(checkpoint, stop.progress)));
                }
                resume = null;
                steps += trained.steps;
            }
            Struct after = trainer.evaluate(trained.theta, test);
            Struct report = Report.SCHEMA.empty().with(Report.RUN, order.get(Order.RUN))
                    .with(Report.ROUND, order.get(Order.ROUND)).with(Report.TASK, order.get(Order.TASK))
                    .with(Report.LAYOUT_HASH, bundle.layout.hash).with(Report.MODEL_HASH, order.get(Order.MODEL_HASH))
                    .with(Report.PATCH_HASH, order.get(Order.PATCH_HASH))
                    .with(Report.NUM_EXAMPLES, (long) train.count()).with(Report.BEFORE, before)
                    .with(Report.AFTER, after).with(Report.TRAIN_LOSS, trained.loss).with(Report.STEPS, steps)
                    .with(Report.SECONDS, spent + seconds(began));
            return complete(job, report, start, trained.theta, kept);
        }
    }

    private static double seconds(long began) {
        return (System.nanoTime() - began) / 1e9;
    }

    /** The checkpoint as a blob; null where the disk refuses, as a stop must not fail. */
    private byte[] kept(Struct checkpoint) {
        try {
            return blobs.write(checkpoint.encode());
        } catch (StorageError error) {
            return null;
        }
    }

    /** The global model, the patch over it, and over that the tensors that the device keeps (T1). */
    private float[] start(Job job, int size, List<Tensor> kept) throws StorageError, CodecError {
        Struct order = job.order;
        float[] theta = GlobalModel.read(order, blobs, size);
        byte[] patch = order.get(Order.PATCH_BLOB) == null
                ? order.get(Order.PATCH) : blobs.read(order.get(Order.PATCH_BLOB).sha256);
        if (patch.length > 0 || order.get(Order.PATCH_HASH).length > 0) {
            if (!Arrays.equals(Digests.sha256(patch), order.get(Order.PATCH_HASH))) {
                throw new CodecError("run " + order.get(Order.RUN) + ", round " + order.get(Order.ROUND)
                        + ": patch_hash does not match");
            }
            SparseVector.decode(patch, size).writeTo(theta);
        }
        if (job.model != null && !kept.isEmpty()) {
            float[] own = GlobalModel.vector(blobs, job.model, size);
            for (Tensor tensor : kept) {
                System.arraycopy(own, tensor.from, theta, tensor.from, tensor.to - tensor.from);
            }
        }
        return theta;
    }

    /** The report, the coded update, and what the device keeps. */
    private Outcome complete(Job job, Struct report, float[] start, float[] trained, List<Tensor> kept)
            throws StorageError, CodecError, TrainingDiverged {
        Struct order = job.order;
        Struct codec = order.get(Order.CODEC);
        boolean trains = order.get(Order.TASK).equals("train");
        byte[] payload = {};
        byte[] residual = job.residual;
        if (trains && order.get(Order.WORK).get(Work.UPLOAD)) {
            boolean feedsBack = codec.get(Codec.ERROR_FEEDBACK);
            float[] owed = feedsBack && residual != null ? GlobalModel.vector(blobs, residual, start.length) : null;
            float[] delta = new float[start.length];
            for (int i = 0; i < delta.length; i++) {
                delta[i] = trained[i] - start[i] + (owed == null ? 0 : owed[i]);
            }
            for (Tensor tensor : kept) {
                Arrays.fill(delta, tensor.from, tensor.to, 0);
            }
            Coding coding = Coding.valueOf(codec.get(Codec.VALUES).toUpperCase(Locale.ROOT));
            payload = coded(delta, codec, coding, feedsBack);
            boolean whole = codec.get(Codec.FRACTION) >= 1 && codec.get(Codec.THRESHOLD) == 0 && coding == Coding.FP32;
            residual = feedsBack && !whole ? blobs.write(GlobalModel.bytes(delta)) : null;
        }
        byte[] update = blobs.write(new Update(report, payload).encode());
        byte[] model = trains ? blobs.write(GlobalModel.bytes(trained)) : job.model;
        return new Outcome(update, model, residual, report.get(Report.BEFORE).get(Metrics.ACCURACY),
                report.get(Report.AFTER).get(Metrics.ACCURACY));
    }

    /** The coded elements of delta (n,), from which what they decode to is subtracted (T10 and T11). */
    private static byte[] coded(float[] delta, Struct codec, Coding coding, boolean feedsBack)
            throws TrainingDiverged {
        Compression compression = Compression.valueOf(codec.get(Codec.COMPRESSION).toUpperCase(Locale.ROOT));
        if (compression == Compression.ZSTD && !Compression.zstdAvailable()) {
            compression = Compression.ZLIB; // the order's codec is advice
        }
        try {
            SparseVector chosen = Selection.select(delta, codec.get(Codec.FRACTION), codec.get(Codec.THRESHOLD),
                    coding == Coding.BF16 && feedsBack);
            byte[] payload = chosen.encode(coding, compression);
            float[] sent = coding.decoded(chosen.values);
            for (int i = 0; i < sent.length; i++) {
                delta[chosen.at(i)] -= sent[i];
            }
            return payload;
        } catch (CodecError error) {
            throw new TrainingDiverged("delta: " + error.getMessage());
        }
    }

    /** What a checkpoint must agree with: the order, what is kept, and the examples. */
    private byte[] jobHash(Job job) {
        ByteBuffer labels = ByteBuffer.allocate(8 * train.count());
        labels.asLongBuffer().put(train.labels);
        return Digests.sha256(MsgPack.pack(Arrays.asList(job.order, job.model, job.residual, labels.array())));
    }

    /** The seed of an order's trainings: the order's own first, then as the Python agent has them. */
    private static long phaseSeed(long seed, int phase) {
        byte[] digest = Digests.sha256((seed + " " + phase).getBytes(StandardCharsets.US_ASCII));
        return phase == 0 ? seed : Long.reverseBytes(ByteBuffer.wrap(digest).getLong()) >>> 1;
    }

    private static void check(Examples examples, Bundle bundle) throws DataError {
        if (examples.count() == 0) {
            throw new DataError("no examples, expected at least one for training and one for testing");
        }
        if (!bundle.input.dtype.equals("float32") || !Arrays.equals(bundle.input.shape, examples.sampleShape)) {
            throw new DataError("x is float32 with rows of " + Arrays.toString(examples.sampleShape)
                    + ", the model expects " + bundle.input.dtype + " " + Arrays.toString(bundle.input.shape));
        }
        if (!bundle.target.dtype.equals("int64") || bundle.target.shape.length > 0) {
            throw new DataError("the model expects targets " + bundle.target.dtype + ", the agent only has labels");
        }
        for (int i = 0; i < examples.inputs.length; i++) {
            if (Float.isNaN(examples.inputs[i]) || Float.isInfinite(examples.inputs[i])) {
                throw new DataError("x[" + i / examples.rowSize + "] holds NaN or inf, expected finite numbers");
            }
        }
        for (int i = 0; i < examples.count() && bundle.numClasses > 0; i++) {
            if (examples.labels[i] < 0 || examples.labels[i] >= bundle.numClasses) {
                throw new DataError("y[" + i + "] is " + examples.labels[i] + ", the model has classes 0 to "
                        + (bundle.numClasses - 1));
            }
        }
    }
}
