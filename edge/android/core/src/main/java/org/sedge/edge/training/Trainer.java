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
         * Throws {@code CodecError} for programs that are missing, refused or damaged, {@code ConfigError} for programs
         * that crash in every backend, and {@code JobStopped} once {@code stopped} returns true.
         */
        Trainer open(Bundle bundle, Job job, BooleanSupplier stopped)
                throws CodecError, ConfigError, StorageError, JobStopped;
    }

    /**
     * Runs a training on the examples; asks {@code stopped} before every step. It continues from {@code resume}, where
     * the same training was stopped, with the same bits as without the stop; null: it starts at the beginning.
     */
    Trained train(TrainRequest request, Examples examples, BooleanSupplier stopped, TrainingState resume)
            throws CodecError, TrainingDiverged, TrainingStopped;

    /** Mean loss and metric of theta (n,). */
    Metrics evaluate(float[] theta, Examples examples) throws CodecError, TrainingDiverged;

    @Override
    void close();
}
