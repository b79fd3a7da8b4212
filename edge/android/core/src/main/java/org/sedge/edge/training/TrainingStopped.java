package org.sedge.edge.training;

/** A training phase was stopped on purpose. It can continue from {@link #state}. */
@SuppressWarnings("serial")
public final class TrainingStopped extends Exception {
    final transient TrainingState state;

    TrainingStopped(String text, TrainingState state) {
        super(text, null, false, false);
        this.state = state;
    }
}
