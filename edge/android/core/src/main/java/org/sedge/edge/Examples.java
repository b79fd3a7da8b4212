package org.sedge.edge;

import org.jspecify.annotations.Nullable;

import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.training.CounterStream;

import java.util.Arrays;

/** A device's examples. */
public final class Examples {
    public final Rows inputs;
    /** Labels, or other numbers to learn; null for models whose input is the target. */
    public final @Nullable Rows targets;

    /** Throws {@code DataError} unless there is a target for each input, or {@code targets} is null. */
    public Examples(Rows inputs, @Nullable Rows targets) throws SedgeException {
        if (targets != null && targets.count != inputs.count) {
            throw new DataError("x has " + inputs.count + " rows and y " + targets.count
                    + ", expected the same number");
        }
        this.inputs = inputs;
        this.targets = targets;
    }

    /** Number of examples. */
    public int count() {
        return inputs.count;
    }

    /**
     * The training and the test part: the same rows as in the Python agent's split, each part in ascending order.
     *
     * @param testFraction share of the test part, which gets at least one example but not all
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
