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

/** One bundle, ready to run. */
public interface Trainer extends AutoCloseable {
    /** Makes a bundle into a trainer. */
    interface Opener {
        /**
         * Throws {@code CodecError} for programs that are missing, refused or damaged, {@code ConfigError} for those that
         * crash in every backend, {@code JobStopped} once {@code stopped} says so.
         */
        Trainer open(Bundle bundle, Job job, BooleanSupplier stopped)
                throws CodecError, ConfigError, StorageError, JobStopped;
    }

    /**
     * Does a training on the examples; {@code stopped} is asked before every step. It goes on from {@code resume}, where
     * the same training was stopped, with the same bits as without the stop; null: from its beginning.
     */
    Trained train(TrainRequest request, Examples examples, BooleanSupplier stopped, TrainingState resume)
            throws CodecError, TrainingDiverged, TrainingStopped;

    /** Mean loss and metric of theta (n,). */
    Metrics evaluate(float[] theta, Examples examples) throws CodecError, TrainingDiverged;

    @Override
    void close();
}
