package org.sedge.edge;

import org.jspecify.annotations.Nullable;

import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.training.CounterStream;

import java.util.Arrays;

/** A device's examples: inputs and, for most models, targets. */
public final class Examples {
    public final Rows inputs;
    /** The labels or other values to predict; null for a model that learns to reproduce its input. */
    public final @Nullable Rows targets;

    /** @throws DataError unless there is one target for each input, or {@code targets} is null */
    public Examples(Rows inputs, @Nullable Rows targets) throws SedgeException {
        if (targets != null && targets.count != inputs.count) {
            throw new DataError("x has " + inputs.count + " rows and y " + targets.count
                    + ", expected the same number");
        }
        this.inputs = inputs;
        this.targets = targets;
    }

    /** Returns the number of examples. */
    public int count() {
        return inputs.count;
    }

    /**
     * Splits the examples into a training and a test part. Each part keeps the order of the examples, and gets the same
     * rows as in the Python agent.
     *
     * @param testFraction the share of the test part, which gets at least one example but never all
     */
    public Examples[] split(double testFraction, long seed) throws SedgeException {
        if (count() < 2) {
            throw new DataError(count() + " examples cannot be split, expected at least 2");
        }
        int[] order = CounterStream.split(seed, count());
        int test = Math.min(Math.max(1, (int) Math.rint(testFraction * count())), count() - 1);
        return new Examples[] {rows(order, test, count()), rows(order, 0, test)};
    }

    private Examples rows(int[] order, int from, int to) throws SedgeException {
        int[] rows = Arrays.copyOfRange(order, from, to);
        Arrays.sort(rows);
        return new Examples(inputs.at(rows), targets == null ? null : targets.at(rows));
    }
}
