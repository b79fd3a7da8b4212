package org.sedge.edge.training;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.TrainingDiverged;
import org.sedge.edge.training.steppers.Average;
import org.sedge.edge.training.steppers.Differentiate;
import org.sedge.edge.training.steppers.Stepper;
import org.sedge.edge.wire.Messages.Training;

import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;

/**
 * The training loop, which takes one step per batch. A {@link Stepper} computes the step, and the backend supplies the
 * batch.
 */
public final class Loop {
    private final Stepper stepper;
    private final Training training;
    private final Batches batches;
    private final BooleanSupplier stopped;
    private final TrainingState resume;
    private final long total;
    private final float[] mean;
    private long step;

    /** Creates a loop that continues from {@code resume}, or starts at the beginning if it is null. */
    public Loop(Stepper stepper, Training training, Batches batches, BooleanSupplier stopped, TrainingState resume) {
        this.stepper = stepper;
        this.training = training;
        this.batches = batches;
        this.stopped = stopped;
        this.resume = resume;
        total = training.localEpochs * batches.count();
        if (resume != null) {
            stepper.resume(resume);
        }
        mean = training.average == 0 ? null
                : resume == null ? new float[stepper.theta().length] : resume.mean.clone();
    }

    /**
     * Takes all steps of the training phase. Checks the loss after each step, and the model after each epoch.
     *
     * @param differentiate receives the batches and computes their gradients
     */
    public Trained run(Differentiate differentiate) throws CodecError, TrainingDiverged, TrainingStopped {
        long epochs = training.localEpochs;
        double loss = Double.NaN;
        for (long epoch = 1; epoch <= epochs; epoch++) {
            loss = epoch(differentiate, "epoch " + epoch + " of " + epochs + ", step ");
        }
        return stepper.trained(loss, step, mean);
    }

    /** Takes the steps of one epoch. Returns the mean loss per example. */
    private double epoch(Differentiate differentiate, String where)
            throws CodecError, TrainingDiverged, TrainingStopped {
        List<Double> losses = new ArrayList<>();
        double weighted = 0;
        double weights = 0;
        for (Batches.Batch batch : batches.epoch()) {
            double loss = resume != null && step < resume.steps ? earlierLoss() : step(differentiate, batch, losses, where);
            step++;
            losses.add(loss);
            weighted += loss * batch.used;
            weights += batch.used;
        }
        if (resume == null || step > resume.steps) {
            requireFinite(stepper.theta(), where + step);
        }
        return weighted / weights;
    }

    /** Returns the loss of a step taken before the job was stopped, or NaN if that step's epoch had already ended. */
    private double earlierLoss() {
        long place = step - resume.steps + resume.losses.size();
        return place >= 0 ? resume.losses.get((int) place) : Double.NaN;
    }

    private double step(Differentiate differentiate, Batches.Batch batch, List<Double> losses, String where)
            throws CodecError, TrainingDiverged, TrainingStopped {
        if (stopped.getAsBoolean()) {
            throw new TrainingStopped(where + (step + 1) + ": stopped",
                    new TrainingState(step, losses, stepper.vectors(), mean));
        }
        differentiate.feed(step, batch);
        double loss = stepper.step(Optimizer.rate(training, step, total));
        requireFinite(loss, where + (step + 1) + ": the loss");
        if (mean != null) {
            Average.add(mean, stepper.theta(), training.average, step, total);
        }
        return loss;
    }

    /** @throws TrainingDiverged if the number is not finite */
    public static void requireFinite(double value, String what) throws TrainingDiverged {
        if (Double.isNaN(value) || Double.isInfinite(value)) {
            throw new TrainingDiverged(what + " is " + (Double.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf"));
        }
    }

    private static void requireFinite(float[] theta, String where) throws TrainingDiverged {
        int count = 0;
        for (float value : theta) {
            count += Float.isNaN(value) || Float.isInfinite(value) ? 1 : 0;
        }
        if (count > 0) {
            throw new TrainingDiverged(where + ": " + count + " parameters are not finite");
        }
    }
}
