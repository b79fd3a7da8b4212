package org.sedge.edge.training.steppers;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.training.Trained;
import org.sedge.edge.training.TrainingState;

import java.util.List;

/** Which models a training moves, and how a step changes them. */
public interface Stepper {
    /** One step on the batch that was fed last. Returns the loss. */
    double step(double rate) throws CodecError;

    /** The model (n,) that is reported, and must be finite; a step changes it. */
    float[] theta();

    /** The models and their optimizers' state, as they are; a step changes them. */
    List<float[]> vectors();

    /** Goes on from a state of this training. */
    void resume(TrainingState state);

    /** The end of the training, after so many steps with this loss, and the mean (n,) of its models or null. */
    Trained trained(double loss, long steps, float[] mean);
}
