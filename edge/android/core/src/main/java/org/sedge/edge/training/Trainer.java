package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.SedgeException.TrainingDiverged;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Messages.Metrics;

import java.util.function.BooleanSupplier;

/** Trains and evaluates the model of one bundle. */
public interface Trainer extends AutoCloseable {
    /** Opens a trainer for a bundle. */
    interface Opener {
        /**
         * Opens a trainer.
         *
         * @throws CodecError if a program is missing, refused or damaged
         * @throws ConfigError if the programs crash in every backend
         * @throws JobStopped once {@code stopped} returns true
         */
        Trainer open(Bundle bundle, Job job, BooleanSupplier stopped)
                throws CodecError, ConfigError, StorageError, JobStopped;
    }

    /**
     * Trains on the examples. Calls {@code stopped} before every step.
     *
     * @param resume the state in which the same training phase was stopped, or null to start at the beginning; the
     *     result is bit-identical to that of uninterrupted training
     */
    Trained train(TrainRequest request, Examples examples, BooleanSupplier stopped, TrainingState resume)
            throws CodecError, TrainingDiverged, TrainingStopped;

    /** Returns the mean loss and metric of theta (n,). */
    Metrics evaluate(float[] theta, Examples examples) throws CodecError, TrainingDiverged;

    @Override
    void close();
}
