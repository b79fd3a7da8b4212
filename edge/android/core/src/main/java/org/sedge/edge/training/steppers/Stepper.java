package org.sedge.edge.training.steppers;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.training.Trained;
import org.sedge.edge.training.TrainingState;

import java.util.List;

/** Holds the models that training changes, and takes the training steps. */
public interface Stepper {
    /** Takes one step on the batch that was fed last. Returns the batch's loss. */
    double step(double rate) throws CodecError;

    /** Returns the live model (n,) whose loss is reported. The training fails if this model is not finite. */
    float[] theta();

    /** Returns the live models and their optimizers' state, (n,) each. The next step changes them. */
    List<float[]> vectors();

    /** Restores a state of the same training phase. */
    void resume(TrainingState state);

    /**
     * Returns the training's result.
     *
     * @param mean the mean (n,) of the models, or null if the training does not average them
     */
    Trained trained(double loss, long steps, float[] mean);
}
