package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.TrainingDiverged;
import org.sedge.edge.wire.Messages.Metrics;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Report;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Record;

import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;

/**
 * The work of a device between its start vector and its update: the training phases of an order, one after another,
 * with an evaluation before and after. It can continue where an earlier attempt stopped.
 */
final class LocalTraining {
    private final Trainer trainer;
    private final Order order;
    private final List<Training> trainings;
    private final long began = System.nanoTime();
    /**
     * The progress so far, including that of an earlier attempt: the number of finished training phases and of their
     * steps, the seconds spent, and the state of the unfinished phase.
     */
    private int phase;
    private long steps;
    private double spent;
    private TrainingState state;
    private Metrics before;
    /** The optimizer's state after the first training phase, kept for the next round; null if none is kept. */
    byte[] moments;
    private double trainingSeconds;
    private long ownSteps;

    LocalTraining(Trainer trainer, Order order, List<Training> trainings) {
        this.trainer = trainer;
        this.order = order;
        this.trainings = trainings;
    }

    /** Prepares to continue where an earlier attempt was stopped. */
    void resume(Record checkpoint) {
        before = checkpoint.get(Checkpoint.BEFORE);
        phase = checkpoint.get(Checkpoint.PHASE).intValue();
        steps = checkpoint.get(Checkpoint.EARLIER_STEPS);
        spent = checkpoint.get(Checkpoint.SECONDS);
        moments = checkpoint.get(Checkpoint.MOMENTS);
        state = Checkpoint.state(checkpoint);
    }

    /**
     * Evaluates the model (n,) that the device predicts with, then trains from the start vector (n,).
     *
     * @param correction a vector (n,) to add to every gradient, or null
     * @param guidance the inputs of a guided loss, or null
     * @param kept the optimizer's encoded state from the last round, or null
     */
    Trained run(float[] start, float[] model, float[] correction, Map<String, float[]> guidance, byte[] kept,
            Examples train, Examples test, BooleanSupplier stopped)
            throws CodecError, TrainingDiverged, TrainingStopped {
        before = before == null ? trainer.evaluate(model, test) : before;
        Trained trained = null;
        for (; phase < trainings.size(); phase++) {
            Training training = trainings.get(phase);
            float[] from = state != null ? state.vectors.get(0) : trained == null ? start : trained.theta;
            boolean goesOn = phase == 0 && kept != null && training.optimizerState.equals("keep");
            Moments earlier = goesOn ? Moments.decode(kept, training, start.length) : null;
            long since = System.nanoTime();
            trained = trainer.train(
                    new TrainRequest(from, training, seed(), start, correction, earlier, guidance), train, stopped,
                    state);
            trainingSeconds += (System.nanoTime() - since) / 1e9;
            ownSteps += trained.steps - (state == null ? 0 : state.steps);
            if (phase == 0) {
                moments = trained.moments == null ? null : trained.moments.encode();
            }
            state = null;
            steps += trained.steps;
        }
        return trained;
    }

    /**
     * Returns the checkpoint of a stopped training phase.
     *
     * @param job the hash of its job
     */
    Record checkpoint(byte[] job, TrainingState stopped) {
        return Checkpoint.with(Checkpoint.SCHEMA.empty().with(Checkpoint.JOB, job).with(Checkpoint.BEFORE, before)
                .with(Checkpoint.PHASE, (long) phase).with(Checkpoint.EARLIER_STEPS, steps)
                .with(Checkpoint.MOMENTS, moments).with(Checkpoint.SECONDS, seconds()), stopped);
    }

    /**
     * Evaluates the model (n,) that the device now predicts with. Returns the report on it and on the training.
     *
     * @param trained the result of the training
     */
    Report report(Trained trained, float[] model, Examples test) throws CodecError, TrainingDiverged {
        Metrics after = trainer.evaluate(model, test);
        return Report.SCHEMA.empty().with(Report.BEFORE, before).with(Report.AFTER, after)
                .with(Report.TRAIN_LOSS, trained.loss).with(Report.STEPS, steps).with(Report.SECONDS, seconds())
                .with(Report.STEP_S, ownSteps == 0 ? null : trainingSeconds / ownSteps);
    }

    private double seconds() {
        return spent + (System.nanoTime() - began) / 1e9;
    }

    /**
     * Returns the seed of the current training phase: the order's own seed for the first phase, a seed derived from it
     * (T6) for later ones.
     */
    private long seed() {
        return phase == 0 ? order.seed : CounterStream.furtherSeed(order.seed, phase);
    }
}
