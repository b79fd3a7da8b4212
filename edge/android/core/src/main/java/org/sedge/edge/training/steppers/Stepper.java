package org.sedge.edge.training.steppers;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.training.Trained;
import org.sedge.edge.training.TrainingState;

import java.util.List;

/** The models that a training changes, and how a step changes them. */
public interface Stepper {
    /** Makes one step on the batch that was fed last. Returns the loss. */
    double step(double rate) throws CodecError;

    /** The model (n,) that is reported, and must be finite; a step changes it. */
    float[] theta();

    /** The current models and their optimizers' state; a step changes them. */
    List<float[]> vectors();

    /** Continues from a state of this training. */
    void resume(TrainingState state);

    /** The result of the training: its steps, its loss, and the mean (n,) of its models or null. */
    Trained trained(double loss, long steps, float[] mean);
}
