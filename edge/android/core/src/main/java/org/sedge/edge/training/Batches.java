package org.sedge.edge.training;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Chooses the examples of each batch (spec/training.md, T4 and T7). */
public final class Batches {
    /**
     * The batch of one step. {@code rows} are indices of examples. The first {@code used} of them have weight 1, the
     * others weight 0.
     */
    public static final class Batch {
        public final int[] rows;
        public final int used;

        Batch(int[] rows, int used) {
            this.rows = rows;
            this.used = used;
        }
    }

    private final int examples;
    private final int size;
    private final String lastBatch;
    private final long seed;
    private long epoch;

    /** @param paddingIsSafe whether rows of weight 0 leave a step unchanged */
    public Batches(int examples, int size, String lastBatch, boolean paddingIsSafe, long seed) {
        this.examples = examples;
        this.size = size;
        boolean fills = lastBatch.equals("pad") && !paddingIsSafe || lastBatch.equals("drop") && examples < size;
        this.lastBatch = fills ? "fill" : lastBatch;
        this.seed = seed;
    }

    /** Returns the number of batches in an epoch. */
    public int count() {
        boolean drops = lastBatch.equals("drop");
        return drops ? examples / size : (examples + size - 1) / size;
    }

    /** Returns the next epoch's batches. */
    public List<Batch> epoch() {
        int[] order = CounterStream.permutation(seed, epoch++, examples);
        List<Batch> found = new ArrayList<>();
        for (int start = 0; start < examples; start += size) {
            int used = Math.min(size, examples - start);
            int[] rows = Arrays.copyOf(Arrays.copyOfRange(order, start, start + used), size);
            for (int i = used; i < size && lastBatch.equals("fill"); i++) {
                rows[i] = order[(start + i) % examples];
            }
            if (used == size || !lastBatch.equals("drop")) {
                found.add(new Batch(rows, lastBatch.equals("fill") ? size : used));
            }
        }
        return found;
    }

    /** Returns batches that contain each example once, in order. The last batch is padded. */
    public static List<Batch> inOrder(int examples, int size) {
        List<Batch> found = new ArrayList<>();
        for (int start = 0; start < examples; start += size) {
            int[] rows = new int[size];
            int used = Math.min(size, examples - start);
            for (int i = 0; i < used; i++) {
                rows[i] = start + i;
            }
            found.add(new Batch(rows, used));
        }
        return found;
    }
}
