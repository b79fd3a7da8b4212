package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.OutOfMemory;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.SedgeException.TrainingDiverged;
import org.sedge.edge.codec.Coding;
import org.sedge.edge.codec.Compression;
import org.sedge.edge.codec.Selection;
import org.sedge.edge.codec.SparseVector;
import org.sedge.edge.rounds.Blobs;
import org.sedge.edge.rounds.GlobalModel;
import org.sedge.edge.rounds.State.Run;
import org.sedge.edge.training.Trainer.Progress;
import org.sedge.edge.training.Trainer.Trained;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Layout.Tensor;
import org.sedge.edge.wire.Messages.Codec;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Report;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Messages.Work;
import org.sedge.edge.wire.Metric;
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
        Fitting.check(train, bundle);
        Fitting.check(test, bundle);
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
            byte[] moments = earlier == null ? null : earlier.get(Checkpoint.MOMENTS);
            Progress resume = earlier == null ? begun(job, trainings.get(0), start) : Checkpoint.progress(earlier);
            Trained trained = null;
            StepTime time = new StepTime();
            for (int phase = earlier == null ? 0 : earlier.get(Checkpoint.PHASE).intValue();
                    phase < trainings.size(); phase++) {
                Struct training = trainings.get(phase);
                float[] from = resume != null ? resume.vectors.get(0) : trained == null ? start : trained.theta;
                try {
                    time.begins(resume == null ? 0 : resume.steps);
                    trained = trainer.train(from, train, training, phaseSeed(order.get(Order.SEED), phase), start,
                            correction, resume, stopped);
                    time.ends(trained.steps);
                } catch (Trainer.Stopped stop) {
                    Struct checkpoint = Checkpoint.SCHEMA.empty().with(Checkpoint.JOB, same)
                            .with(Checkpoint.BEFORE, before).with(Checkpoint.PHASE, (long) phase)
                            .with(Checkpoint.EARLIER_STEPS, steps).with(Checkpoint.MOMENTS, moments)
                            .with(Checkpoint.SECONDS, spent + seconds(began));
                    throw new JobStopped(stop.getMessage(), kept(Checkpoint.with(checkpoint, stop.progress)));
                }
                if (phase == 0 && training.get(Training.OPTIMIZER_STATE).equals("keep")) {
                    moments = Moments.encode(training, trained.optimizer);
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
                    .with(Report.SECONDS, spent + seconds(began)).with(Report.STEP_S, time.ofStep());
            return complete(job, report, bundle.metric, start, trained.theta, kept, moments);
        }
    }

    /** Where the first training begins: with the optimizer that the last round left, if the order says so. */
    private Progress begun(Job job, Struct training, float[] start) throws StorageError {
        byte[] name = job.kept.get(Run.MOMENTS);
        return name == null || !training.get(Training.OPTIMIZER_STATE).equals("keep")
                ? null : Moments.begin(blobs.read(name), training, start);
    }

    /** The seconds of a training step, over all that this attempt makes. */
    private static final class StepTime {
        private double seconds;
        private long steps;
        private long from;
        private long began;

        void begins(long step) {
            from = step;
            began = System.nanoTime();
        }

        void ends(long step) {
            seconds += JobRunner.seconds(began);
            steps += step - from;
        }

        /** null where there was none. */
        Double ofStep() {
            return steps == 0 ? null : seconds / steps;
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
        if (job.kept.get(Run.MODEL) != null && !kept.isEmpty()) {
            float[] own = GlobalModel.vector(blobs, job.kept.get(Run.MODEL), size);
            for (Tensor tensor : kept) {
                System.arraycopy(own, tensor.from, theta, tensor.from, tensor.to - tensor.from);
            }
        }
        return theta;
    }

    /** The report, the coded update, and what the device keeps. */
    private Outcome complete(Job job, Struct report, Metric metric, float[] start, float[] trained, List<Tensor> kept,
            byte[] moments) throws StorageError, CodecError, TrainingDiverged {
        Struct order = job.order;
        Struct codec = order.get(Order.CODEC);
        boolean trains = order.get(Order.TASK).equals("train");
        byte[] payload = {};
        byte[] residual = job.kept.get(Run.RESIDUAL);
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
        Struct left = job.kept.with(Run.RESIDUAL, residual);
        if (trains) {
            left = left.with(Run.MODEL, blobs.write(GlobalModel.bytes(trained)))
                    .with(Run.MOMENTS, moments == null ? null : blobs.write(moments));
        }
        return new Outcome(update, report, metric, left);
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
        int rowBytes = train.targets == null ? 0 : train.targets.rowSize * train.targets.type.size;
        ByteBuffer targets = ByteBuffer.allocate(train.count() * rowBytes);
        for (int row = 0; targets.hasRemaining(); row++) {
            train.targets.put(row, targets);
        }
        return Digests.sha256(MsgPack.pack(Arrays.asList(job.order, job.kept.get(Run.MODEL), job.kept.get(Run.RESIDUAL),
                job.kept.get(Run.MOMENTS), targets.array())));
    }

    /** The seed of an order's trainings: the order's own first, then as the Python agent has them. */
    private static long phaseSeed(long seed, int phase) {
        byte[] digest = Digests.sha256((seed + " " + phase).getBytes(StandardCharsets.US_ASCII));
        return phase == 0 ? seed : Long.reverseBytes(ByteBuffer.wrap(digest).getLong()) >>> 1;
    }
}
