package org.sedge.edge.codec;

import org.sedge.edge.SedgeException.CodecError;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.Locale;

/**
 * The six precisions in which a coded vector can store values, as byte planes. The constants are in the order of their
 * codes (spec/coded-vector.md, Values).
 */
public enum Coding {
    FP32(0, 4),
    FP16(0, 2),
    BF16(0, 2),
    INT8(64, 3),
    INT4(32, 3),
    SIGN(64, 3);

    /** The number of values that share a scale, or 0 if this precision has no scales. */
    private final int block;
    final int planes;

    Coding(int block, int planes) {
        this.block = block;
        this.planes = planes;
    }

    /**
     * Returns true if the second-highest byte plane holds the lowest bit of the exponent, and the highest plane its other
     * bits. Only then may the second-highest plane be sorted by exponent.
     */
    boolean orders() {
        return this == FP32 || this == BF16;
    }

    /** Returns a plane's length in bytes for {@code count} values. */
    int planeBytes(int plane, int count) {
        if (plane > 0 && block > 0) {
            return (count + block - 1) / block;
        }
        return this == INT4 ? (count + 1) / 2 : this == SIGN ? (count + 7) / 8 : count;
    }

    /**
     * Returns the values as the receiver will see them, that is, encoded and decoded again.
     *
     * @throws CodecError if a value would not be finite
     */
    public float[] decoded(float[] values) throws CodecError {
        float[] found = read(toPlanes(values), values.length);
        int largest = 0;
        for (int i = 1; i < values.length; i++) {
            largest = Math.abs(values[i]) > Math.abs(values[largest]) ? i : largest;
        }
        for (float value : found) {
            requireFinite(value, largest, values[largest], " is not a finite number in " + name().toLowerCase(Locale.ROOT));
        }
        return found;
    }

    /**
     * Checks that {@code value} is finite.
     *
     * @param said the value to show in the message instead
     * @throws CodecError if it is not finite
     */
    static void requireFinite(float value, int i, float said, String words) throws CodecError {
        if (Float.isNaN(value) || Float.isInfinite(value)) {
            throw new CodecError("value[" + i + "]: " + digits(said) + words);
        }
    }

    /** Formats a number as Python does, with four digits and ties to even. */
    private static String digits(float value) {
        if (Float.isNaN(value)) {
            return "nan";
        }
        if (Float.isInfinite(value)) {
            return value > 0 ? "inf" : "-inf";
        }
        return String.format(Locale.ROOT, "%.3e", new BigDecimal(value).round(new MathContext(4, RoundingMode.HALF_EVEN)));
    }

    byte[][] toPlanes(float[] values) throws CodecError {
        byte[][] made = new byte[planes][];
        for (int plane = 0; plane < planes; plane++) {
            made[plane] = new byte[planeBytes(plane, values.length)];
        }
        for (int i = 0; i < values.length; i++) {
            requireFinite(values[i], i, values[i], " is not a finite number in " + name().toLowerCase(Locale.ROOT));
            if (block == 0) {
                int bits = Float.floatToRawIntBits(values[i]);
                put(made, 0, i, this == FP32 ? bits : this == FP16 ? toHalf(values[i]) : nearestBf16(bits));
            }
        }
        for (int from = 0; block > 0 && from < values.length; from += block) {
            quantise(values, from, Math.min(from + block, values.length), made);
        }
        return made;
    }

    /**
     * Decodes {@code count} values from planes, whose lengths must be right.
     *
     * @throws CodecError if a code, scale or value is invalid
     */
    float[] fromPlanes(byte[][] coded, int count) throws CodecError {
        float[] values = read(coded, count);
        for (int i = 0; i < count; i++) {
            requireFinite(values[i], i, values[i], " is not finite");
        }
        return values;
    }

    private float[] read(byte[][] coded, int count) throws CodecError {
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            if (this == FP32) {
                values[i] = Float.intBitsToFloat(joined(coded, 0, i));
            } else if (this == FP16) {
                values[i] = fromHalf(joined(coded, 0, i));
            } else if (this == BF16) {
                values[i] = Float.intBitsToFloat(joined(coded, 0, i) << 16);
            } else {
                int scale = joined(coded, 1, i / block);
                if (scale > 0x7fff) {
                    throw new CodecError("scale[" + i / block + "]: negative");
                }
                values[i] = code(coded[0], i) * Float.intBitsToFloat(scale << 16);
            }
        }
        int used = this == INT4 ? count % 2 * 4 : this == SIGN ? count % 8 : 0;
        if (used > 0 && (coded[0][coded[0].length - 1] & 0xff) >> used != 0) {
            throw new CodecError("value: bits are set past the last code");
        }
        return values;
    }

    private int code(byte[] plane, int i) throws CodecError {
        if (this == SIGN) {
            return (plane[i >> 3] >> (i & 7) & 1) == 1 ? -1 : 1;
        }
        int code = this == INT8 ? plane[i] : plane[i >> 1] << ((i & 1) == 0 ? 28 : 24) >> 28;
        if (code == (this == INT8 ? -128 : -8)) {
            throw new CodecError("value[" + i + "]: code " + code + " is not used");
        }
        return code;
    }

    private void quantise(float[] values, int from, int to, byte[][] made) {
        float largest = 0;
        double sum = 0;
        for (int i = from; i < to; i++) {
            largest = Math.max(largest, Math.abs(values[i]));
            sum += Math.abs(values[i]);
        }
        int most = this == INT8 ? 127 : 7;
        // The scale is rounded up, so that no code exceeds the maximum. For SIGN it is the mean magnitude, rounded to
        // nearest.
        int scaleBits = this == SIGN ? nearestBf16(Float.floatToRawIntBits((float) (sum / (to - from))))
                : Float.floatToRawIntBits(largest / most) + 0xffff >>> 16;
        put(made, 1, from / block, scaleBits);
        float scale = Float.intBitsToFloat(scaleBits << 16);
        for (int i = from; i < to; i++) {
            if (this == SIGN) {
                made[0][i >> 3] |= (byte) (Float.floatToRawIntBits(values[i]) >>> 31 << (i & 7));
                continue;
            }
            int code = (int) Math.rint(values[i] / (scale > 0 ? scale : 1f));
            if (this == INT8) {
                made[0][i] = (byte) code;
            } else {
                made[0][i >> 1] |= (byte) ((code & 15) << (i & 1) * 4);
            }
        }
    }

    private static void put(byte[][] made, int first, int place, int bits) {
        for (int plane = first; plane < made.length; plane++) {
            made[plane][place] = (byte) (bits >>> 8 * (plane - first));
        }
    }

    private static int joined(byte[][] coded, int first, int place) {
        int bits = 0;
        for (int plane = coded.length - 1; plane >= first; plane--) {
            bits = bits << 8 | coded[plane][place] & 0xff;
        }
        return bits;
    }

    private static int nearestBf16(int bits) {
        return bits + 0x7fff + (bits >>> 16 & 1) >>> 16;
    }

    /** Returns the bits of the nearest binary16 number, ties to even. */
    private static int toHalf(float value) {
        int sign = Float.floatToRawIntBits(value) >>> 16 & 0x8000;
        float magnitude = Math.abs(value);
        if (magnitude >= 65520f) {
            return sign | 0x7c00;
        }
        int exponent = Math.max(Math.getExponent(magnitude), -14);
        // A unit in the last place is 2^(exponent - 10). The quotient is exact, and rint rounds ties to even.
        int units = (int) Math.rint((double) magnitude / Math.scalb(1.0, exponent - 10));
        return sign | (exponent + 14 << 10) + units;
    }

    private static float fromHalf(int bits) {
        int exponent = bits >> 10 & 31;
        int mantissa = bits & 0x3ff;
        float magnitude = exponent == 31 ? (mantissa == 0 ? Float.POSITIVE_INFINITY : Float.NaN)
                : (float) Math.scalb((double) (exponent == 0 ? mantissa : mantissa | 0x400), Math.max(exponent, 1) - 25);
        return (bits & 0x8000) == 0 ? magnitude : -magnitude;
    }
}
