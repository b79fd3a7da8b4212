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
import org.sedge.edge.jobs.StartVector;
import org.sedge.edge.jobs.Vectors;
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
import org.sedge.edge.wire.Record;
import org.sedge.edge.wire.Refusals;
import org.sedge.edge.wire.Update;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.BooleanSupplier;

/**
 * Does the work of one order: assembles the start vector, evaluates, trains, evaluates again, and encodes the update
 * (spec/training.md).
 *
 * <p>It reads and writes only blobs. If it crashes before the core commits the outcome, only unreferenced blobs are
 * left behind, and they are deleted later.
 */
public final class JobRunner {
    private final Blobs blobs;
    private final Trainer.Opener programs;
    private final Examples train;
    private final Examples test;

    public JobRunner(Blobs blobs, Trainer.Opener programs, Examples train, Examples test) {
        this.blobs = blobs;
        this.programs = programs;
        this.train = train;
        this.test = test;
    }

    /**
     * Runs the job.
     *
     * @throws JobStopped once {@code stopped} returns true
     */
    public Outcome run(Job job, BooleanSupplier stopped) throws SedgeException, JobStopped {
        try {
            return done(job, stopped);
        } catch (OutOfMemoryError error) {
            String said = error.getMessage() == null ? "none left" : error.getMessage();
            throw new OutOfMemory(Refusals.outOfMemory(GlobalModel.where(job.order), said), error);
        }
    }

    private Outcome done(Job job, BooleanSupplier stopped) throws SedgeException, JobStopped {
        Order order = job.order;
        Bundle bundle = Bundle.unpack(blobs.read(order.bundle.sha256));
        Examples train = Fitting.fitted(this.train, bundle);
        Examples test = Fitting.fitted(this.test, bundle);
        List<Tensor> kept = bundle.layout.named(order.work.keep, "keep");
        List<Training> trainings = trainings(order.work, bundle.layout);
        Blended blended = new Blended(job, blobs, bundle);
        float[] start = StartVector.of(job, blobs, bundle.layout.size, kept);
        byte[] last = job.kept.model;
        float[] previous = last == null || order.work.loss.isEmpty() ? null : Vectors.read(blobs, last, start.length);
        Map<String, float[]> guidance = Guidance.of(order.work, bundle, start, previous, train);
        float[] correction = null;
        if (order.correction != null) {
            correction = new float[start.length];
            SparseVector.decode(blobs.read(order.correction.sha256), start.length).writeTo(correction);
        }
        try (Trainer trainer = programs.open(bundle, job, stopped)) {
            byte[] same = jobHash(job, bundle, train, test);
            LocalTraining training = new LocalTraining(trainer, order, trainings);
            Record earlier = job.checkpoint == null ? null : Checkpoint.decode(blobs.read(job.checkpoint), same);
            if (earlier != null) {
                training.resume(earlier);
            }
            byte[] moments = job.kept.moments == null ? null : blobs.read(job.kept.moments);
            Trained trained;
            try {
                float[] before = blended.before(start, trainer, train);
                trained = training.run(start, before, correction, guidance, moments, train, test, stopped);
            } catch (TrainingStopped stop) {
                throw new JobStopped(stop.getMessage(), kept(training.checkpoint(same, stop.state)));
            }
            float[] model = blended.model(trained.model());
            Report report = training.report(trained, model, test).with(Report.RUN, order.run)
                    .with(Report.ROUND, order.round).with(Report.TASK, order.task)
                    .with(Report.LAYOUT_HASH, bundle.layout.hash).with(Report.MODEL_HASH, order.modelHash)
                    .with(Report.PATCH_HASH, order.patchHash).with(Report.HTTP_BYTES, job.httpBytes)
                    .with(Report.NUM_EXAMPLES, (long) train.count());
            float[] predicts = order.task.equals("train") ? model : blended.informed;
            return complete(job, report, bundle.metric, start, trained, predicts, kept, training.moments);
        }
    }

    /**
     * Returns the order's training phases, the first one and those that follow it, after checking the tensor names in
     * them.
     */
    private static List<Training> trainings(Work work, Layout layout) throws CodecError {
        List<Training> trainings = new ArrayList<>(work.then);
        Training first = work.training;
        trainings.add(0, first == null ? Training.SCHEMA.empty() : first);
        for (Training training : trainings) {
            layout.named(training.freeze, "training.freeze");
        }
        return trainings;
    }

    /** Stores the checkpoint as a blob. Returns null if the write fails, because stopping must not fail. */
    private byte[] kept(Record checkpoint) {
        try {
            return blobs.write(checkpoint.encode());
        } catch (StorageError error) {
            return null;
        }
    }

    /**
     * Encodes the update and assembles the device's new state.
     *
     * @param model the model (n,) to predict with; null for the global one
     */
    private Outcome complete(Job job, Report report, Metric metric, float[] start, Trained trained,
            float[] model, List<Tensor> kept, byte[] moments) throws StorageError, CodecError, TrainingDiverged {
        Order order = job.order;
        Codec codec = order.codec;
        boolean trains = order.task.equals("train");
        byte[] payload = {};
        byte[] residual = job.kept.residual;
        if (trains && order.work.upload) {
            boolean feedsBack = codec.errorFeedback;
            float[] owed = feedsBack && residual != null ? Vectors.read(blobs, residual, start.length) : null;
            float[] delta = new float[start.length];
            for (int i = 0; i < delta.length; i++) {
                delta[i] = trained.theta[i] - start[i] + (owed == null ? 0 : owed[i]);
            }
            for (Tensor tensor : kept) {
                Arrays.fill(delta, tensor.from, tensor.to, 0);
            }
            Coding coding = Coding.valueOf(codec.values.toUpperCase(Locale.ROOT));
            payload = coded(delta, order, coding);
            boolean whole = codec.fraction >= 1 && codec.threshold == 0 && coding == Coding.FP32;
            residual = feedsBack && !whole ? blobs.write(Vectors.bytes(delta)) : null;
        }
        byte[] update = blobs.write(new Update(report, payload).encode());
        Kept left = job.kept.with(Kept.RESIDUAL, residual);
        if (trains) {
            left = left.with(Kept.MODEL, blobs.write(Vectors.bytes(model)))
                    .with(Kept.MOMENTS, moments == null ? null : blobs.write(moments)).with(Kept.START, null);
        } else if (left.model == null) {
            left = left.with(Kept.START, model == null ? null : blobs.write(Vectors.bytes(model)));
        }
        return new Outcome(update, report, metric, left);
    }

    /** Encodes the selected elements of delta (n,) and subtracts their decoded values from delta (T10 and T11). */
    private static byte[] coded(float[] delta, Order order, Coding coding) throws TrainingDiverged {
        Codec codec = order.codec;
        // The order's compression is only a suggestion, and this device does not support zstd.
        Compression compression = codec.compression.equals("none") ? Compression.NONE : Compression.ZLIB;
        try {
            SparseVector chosen = Selection.select(delta, codec.fraction, codec.threshold,
                    coding == Coding.BF16 && codec.errorFeedback);
            byte[] payload = chosen.encode(coding, compression);
            float[] sent = coding.decoded(chosen.values);
            for (int i = 0; i < sent.length; i++) {
                delta[chosen.at(i)] -= sent[i];
            }
            return payload;
        } catch (CodecError error) {
            throw new TrainingDiverged(GlobalModel.where(order) + ": delta: " + error.getMessage());
        }
    }

    /**
     * Returns the hash of everything that a checkpoint depends on: the order, the device's state, and the examples'
     * targets. It does not cover how the order's blobs are transferred, which a repeated order may change.
     */
    private static byte[] jobHash(Job job, Bundle bundle, Examples train, Examples test) {
        MessageDigest digest = Digests.sha256();
        Order order = job.order;
        byte[] correction = order.correction == null ? null : order.correction.sha256;
        Order bare = order.with(Order.BUNDLE, null).with(Order.MODEL, null).with(Order.STEPS, Collections.emptyList())
                .with(Order.PATCH_BLOB, null).with(Order.CORRECTION, null).with(Order.PLACES, Collections.emptyList());
        digest.update(MsgPack.pack(Arrays.asList(Checkpoint.FORMAT, bare, order.bundle.sha256, correction,
                job.kept.model, job.kept.residual, job.kept.moments)));
        for (Examples examples : Arrays.asList(train, test)) {
            List<Long> shape = new ArrayList<>();
            shape.add((long) examples.count());
            for (long extent : examples.inputs.shape()) {
                shape.add(extent);
            }
            digest.update(MsgPack.pack(shape));
            Rows targets = bundle.target == null ? examples.inputs : examples.targets;
            ByteBuffer row = ByteBuffer.allocate(targets.rowSize * targets.type.size).order(ByteOrder.LITTLE_ENDIAN);
            for (int i = 0; i < targets.count; i++) {
                row.clear();
                targets.put(i, row);
                digest.update(row.array());
            }
        }
        return digest.digest();
    }
}
