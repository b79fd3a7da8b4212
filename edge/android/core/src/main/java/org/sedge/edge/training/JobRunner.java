package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.OutOfMemory;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.SedgeException.TrainingDiverged;
import org.sedge.edge.SedgeException;
import org.sedge.edge.codec.Coding;
import org.sedge.edge.codec.Compression;
import org.sedge.edge.codec.Selection;
import org.sedge.edge.codec.SparseVector;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.GlobalModel;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.jobs.Kept;
import org.sedge.edge.jobs.Outcome;
import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.training.Trainer.Trained;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Layout.Tensor;
import org.sedge.edge.wire.Layout;
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
import java.nio.ByteOrder;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
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
        try {
            return done(job, stopped);
        } catch (OutOfMemoryError error) {
            throw new OutOfMemory(GlobalModel.where(job.order) + ": memory: " + error.getMessage() + ", expected room for the job", error);
        }
    }

    private Outcome done(Job job, BooleanSupplier stopped) throws SedgeException, JobStopped {
        Struct order = job.order;
        Bundle bundle = Bundle.unpack(blobs.read(order.get(Order.BUNDLE).sha256));
        Examples train = Fitting.fitted(this.train, bundle);
        Examples test = Fitting.fitted(this.test, bundle);
        List<Tensor> kept = bundle.layout.named(order.get(Order.WORK).get(Work.KEEP), "keep");
        List<Struct> trainings = trainings(order.get(Order.WORK), bundle.layout);
        float[] start = start(job, bundle.layout.size, kept);
        float[] correction = null;
        if (order.get(Order.CORRECTION) != null) {
            correction = new float[start.length];
            SparseVector.decode(blobs.read(order.get(Order.CORRECTION).sha256), start.length).writeTo(correction);
        }
        try (Trainer trainer = programs.open(bundle, job, stopped)) {
            byte[] same = jobHash(job, bundle, train);
            Attempt attempt = new Attempt(trainer, order, trainings);
            Struct earlier = job.checkpoint == null ? null : Checkpoint.decode(blobs.read(job.checkpoint), same);
            if (earlier == null) {
                byte[] moments = job.kept.get(Kept.MOMENTS);
                attempt.begin(moments == null ? null : blobs.read(moments), start);
            } else {
                attempt.resume(earlier);
            }
            Trained trained;
            try {
                trained = attempt.train(start, correction, train, test, stopped);
            } catch (Trainer.Stopped stop) {
                throw new JobStopped(stop.getMessage(), kept(attempt.checkpoint(same, stop.progress)));
            }
            Struct report = attempt.report(trained, test).with(Report.RUN, order.get(Order.RUN))
                    .with(Report.ROUND, order.get(Order.ROUND)).with(Report.TASK, order.get(Order.TASK))
                    .with(Report.LAYOUT_HASH, bundle.layout.hash).with(Report.MODEL_HASH, order.get(Order.MODEL_HASH))
                    .with(Report.PATCH_HASH, order.get(Order.PATCH_HASH)).with(Report.HTTP_BYTES, job.httpBytes)
                    .with(Report.NUM_EXAMPLES, (long) train.count());
            return complete(job, report, bundle.metric, start, trained, kept, attempt.moments);
        }
    }

    /** The first training, and those that follow it; their names are checked. */
    private static List<Struct> trainings(Struct work, Layout layout) throws CodecError {
        List<Struct> trainings = new ArrayList<>(work.get(Work.THEN));
        Struct first = work.get(Work.TRAINING);
        trainings.add(0, first == null ? Training.SCHEMA.empty() : first);
        for (Struct training : trainings) {
            layout.named(training.get(Training.FREEZE), "training.freeze");
        }
        return trainings;
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
                throw new CodecError(GlobalModel.where(order) + ": patch_hash does not match");
            }
            SparseVector.decode(patch, size).writeTo(theta);
        }
        if (job.kept.get(Kept.MODEL) != null && !kept.isEmpty()) {
            float[] own = Vectors.read(blobs, job.kept.get(Kept.MODEL), size);
            for (Tensor tensor : kept) {
                System.arraycopy(own, tensor.from, theta, tensor.from, tensor.to - tensor.from);
            }
        }
        return theta;
    }

    /** The report, the coded update, and what the device keeps. */
    private Outcome complete(Job job, Struct report, Metric metric, float[] start, Trained trained, List<Tensor> kept,
            byte[] moments) throws StorageError, CodecError, TrainingDiverged {
        Struct order = job.order;
        Struct codec = order.get(Order.CODEC);
        boolean trains = order.get(Order.TASK).equals("train");
        byte[] payload = {};
        byte[] residual = job.kept.get(Kept.RESIDUAL);
        if (trains && order.get(Order.WORK).get(Work.UPLOAD)) {
            boolean feedsBack = codec.get(Codec.ERROR_FEEDBACK);
            float[] owed = feedsBack && residual != null ? Vectors.read(blobs, residual, start.length) : null;
            float[] delta = new float[start.length];
            for (int i = 0; i < delta.length; i++) {
                delta[i] = trained.theta[i] - start[i] + (owed == null ? 0 : owed[i]);
            }
            for (Tensor tensor : kept) {
                Arrays.fill(delta, tensor.from, tensor.to, 0);
            }
            Coding coding = Coding.valueOf(codec.get(Codec.VALUES).toUpperCase(Locale.ROOT));
            payload = coded(delta, codec, coding, feedsBack);
            boolean whole = codec.get(Codec.FRACTION) >= 1 && codec.get(Codec.THRESHOLD) == 0 && coding == Coding.FP32;
            residual = feedsBack && !whole ? blobs.write(Vectors.bytes(delta)) : null;
        }
        byte[] update = blobs.write(new Update(report, payload).encode());
        Struct left = job.kept.with(Kept.RESIDUAL, residual);
        if (trains) {
            left = left.with(Kept.MODEL, blobs.write(Vectors.bytes(trained.model)))
                    .with(Kept.MOMENTS, moments == null ? null : blobs.write(moments));
        }
        return new Outcome(update, report, metric, left);
    }

    /** The coded elements of delta (n,), from which what they decode to is subtracted (T10 and T11). */
    private static byte[] coded(float[] delta, Struct codec, Coding coding, boolean feedsBack)
            throws TrainingDiverged {
        // The order's codec is advice: this device has no zstd.
        Compression compression = codec.get(Codec.COMPRESSION).equals("none") ? Compression.NONE : Compression.ZLIB;
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

    /** What a checkpoint must agree with: the order, what is kept, and the examples' targets. */
    private static byte[] jobHash(Job job, Bundle bundle, Examples train) {
        List<Long> shape = new ArrayList<>();
        shape.add((long) train.count());
        for (long extent : train.inputs.shape) {
            shape.add(extent);
        }
        MessageDigest digest = Digests.sha256();
        Struct order = job.order.with(Order.PLACES, Collections.emptyList()); // they may have changed meanwhile
        digest.update(MsgPack.pack(Arrays.asList(order, job.kept.get(Kept.MODEL), job.kept.get(Kept.RESIDUAL),
                job.kept.get(Kept.MOMENTS), shape)));
        Rows targets = bundle.target == null ? train.inputs : train.targets;
        ByteBuffer row = ByteBuffer.allocate(targets.rowSize * targets.type.size).order(ByteOrder.LITTLE_ENDIAN);
        for (int i = 0; i < targets.count; i++) {
            row.clear();
            targets.put(i, row);
            digest.update(row.array());
        }
        return digest.digest();
    }
}
