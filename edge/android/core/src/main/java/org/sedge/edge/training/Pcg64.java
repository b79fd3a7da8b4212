package org.sedge.edge.training;

import java.math.BigInteger;

/** The generator of shuffles and noise: PCG64 as numpy seeds it (protocol/spec/training.md, T6 and T12). */
public final class Pcg64 {
    private static final long MULTIPLIER_HIGH = 0x2360ed051fc65da4L;
    private static final long MULTIPLIER_LOW = 0x4385df649fccf645L;

    private long high;
    private long low;
    private final long incrementHigh;
    private final long incrementLow;
    private int spare;
    private boolean hasSpare;

    /** Seeded with 64 bits, taken as unsigned. */
    public Pcg64(long seed) {
        int[] out = seeded(seed);
        long[] words = new long[4];
        for (int j = 0; j < 4; j++) {
            words[j] = out[2 * j] & 0xffffffffL | (long) out[2 * j + 1] << 32;
        }
        incrementHigh = words[2] << 1 | words[3] >>> 63;
        incrementLow = words[3] << 1 | 1;
        low = incrementLow + words[1];
        high = incrementHigh + words[0] + (Long.compareUnsigned(low, words[1]) < 0 ? 1 : 0);
        advance();
    }

    /** numpy's SeedSequence: eight words of 32 bits. */
    private static int[] seeded(long seed) {
        int[] pool = {(int) seed, (int) (seed >>> 32), 0, 0};
        int[] h = {0x43b0d7e5};
        for (int i = 0; i < 4; i++) {
            pool[i] = hash(pool[i], h, 0x931e8875);
        }
        for (int s = 0; s < 4; s++) {
            for (int d = 0; d < 4; d++) {
                if (s != d) {
                    int r = pool[d] * 0xca01f9dd - hash(pool[s], h, 0x931e8875) * 0x4973f715;
                    pool[d] = r ^ r >>> 16;
                }
            }
        }
        h[0] = 0x8b51f9dd;
        int[] out = new int[8];
        for (int i = 0; i < 8; i++) {
            out[i] = hash(pool[i % 4], h, 0x58f38ded);
        }
        return out;
    }

    private static int hash(int value, int[] h, int multiplier) {
        int v = value ^ h[0];
        h[0] *= multiplier;
        v *= h[0];
        return v ^ v >>> 16;
    }

    private void advance() {
        long newLow = low * MULTIPLIER_LOW;
        long newHigh = high * MULTIPLIER_LOW + low * MULTIPLIER_HIGH + unsignedHigh(low, MULTIPLIER_LOW);
        low = newLow + incrementLow;
        high = newHigh + incrementHigh + (Long.compareUnsigned(low, incrementLow) < 0 ? 1 : 0);
    }

    /** The high 64 bits of an unsigned product. */
    private static long unsignedHigh(long a, long b) {
        long a0 = a & 0xffffffffL;
        long a1 = a >>> 32;
        long b0 = b & 0xffffffffL;
        long b1 = b >>> 32;
        long middle = a1 * b0 + (a0 * b0 >>> 32);
        long other = a0 * b1 + (middle & 0xffffffffL);
        return a1 * b1 + (middle >>> 32) + (other >>> 32);
    }

    /** Skips so many words of 64 bits, in logarithmic time. */
    public void skip(long words) {
        BigInteger modulus = BigInteger.ONE.shiftLeft(128);
        BigInteger multiplier = wide(MULTIPLIER_HIGH, MULTIPLIER_LOW);
        BigInteger plus = wide(incrementHigh, incrementLow);
        BigInteger state = wide(high, low);
        for (long left = words; left > 0; left >>= 1) {
            if ((left & 1) == 1) {
                state = state.multiply(multiplier).add(plus).mod(modulus);
            }
            plus = multiplier.add(BigInteger.ONE).multiply(plus).mod(modulus);
            multiplier = multiplier.multiply(multiplier).mod(modulus);
        }
        low = state.longValue();
        high = state.shiftRight(64).longValue();
    }

    private static BigInteger wide(long high, long low) {
        return new BigInteger(Long.toUnsignedString(high)).shiftLeft(64)
                .add(new BigInteger(Long.toUnsignedString(low)));
    }

    /** The next word of 64 bits. */
    public long next64() {
        advance();
        return Long.rotateRight(high ^ low, (int) (high >>> 58));
    }

    private int next32() {
        if (hasSpare) {
            hasSpare = false;
            return spare;
        }
        long word = next64();
        spare = (int) (word >>> 32);
        hasSpare = true;
        return (int) word;
    }

    /** A permutation of 0 to {@code count} - 1; the generator goes on from one to the next. */
    public int[] permutation(int count) {
        int[] p = new int[count];
        for (int i = 0; i < count; i++) {
            p[i] = i;
        }
        for (int i = count - 1; i > 0; i--) {
            int mask = -1 >>> Integer.numberOfLeadingZeros(i);
            int j;
            do {
                j = next32() & mask;
            } while (j > i);
            int held = p[i];
            p[i] = p[j];
            p[j] = held;
        }
        return p;
    }
}
