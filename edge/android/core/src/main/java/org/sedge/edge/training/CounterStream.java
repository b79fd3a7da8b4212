package org.sedge.edge.training;

import java.util.Arrays;

/**
 * Generates random numbers that are easy to reproduce in any language (spec/training.md, T6 and T12). The generator is
 * SplitMix64, seeded with a key.
 */
public final class CounterStream {
    private static final int SHUFFLE = 0;
    private static final int NOISE = 1;
    private static final int FURTHER_TRAINING = 2;
    private static final int SPLIT = 3;

    private CounterStream() {}

    /** Returns the pseudorandom word for a key and a counter. */
    private static long word(long key, long counter) {
        long z = key + (counter + 1) * 0x9e3779b97f4a7c15L;
        z = (z ^ z >>> 30) * 0xbf58476d1ce4e5b9L;
        z = (z ^ z >>> 27) * 0x94d049bb133111ebL;
        return z ^ z >>> 31;
    }

    private static long key(long seed, int purpose, long part) {
        return word(word(seed, purpose), part);
    }

    /** Returns {@code count} random numbers for a step. They are multiples of 2^-16 in [0, 1). */
    public static float[] noise(long seed, long step, int count) {
        long key = key(seed, NOISE, step);
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = (word(key, i / 4) >>> 16 * (i % 4) & 0xffff) * 0x1p-16f;
        }
        return numbers;
    }

    /** Returns the seed of the {@code phase}-th training phase that follows an order's first one, counted from 1. */
    public static long furtherSeed(long seed, long phase) {
        return key(seed, FURTHER_TRAINING, phase) >>> 1;
    }

    /**
     * Shuffles the rows 0 to {@code count} - 1 for an epoch. Each row gets a random 32-bit number, by which the rows
     * are sorted; ties keep their order.
     */
    public static int[] permutation(long seed, long epoch, int count) {
        return sorted(key(seed, SHUFFLE, epoch), count);
    }

    /** Shuffles the rows 0 to {@code count} - 1 for a split. The rows of the test part come first. */
    public static int[] split(long seed, int count) {
        return sorted(key(seed, SPLIT, 0), count);
    }

    private static int[] sorted(long key, int count) {
        long[] sorted = new long[count];
        for (int i = 0; i < count; i++) {
            long number = word(key, i / 2) >>> 32 * (i % 2) & 0xffffffffL;
            sorted[i] = number << 31 | i;
        }
        Arrays.sort(sorted);
        int[] rows = new int[count];
        for (int i = 0; i < count; i++) {
            rows[i] = (int) (sorted[i] & Integer.MAX_VALUE);
        }
        return rows;
    }
}
