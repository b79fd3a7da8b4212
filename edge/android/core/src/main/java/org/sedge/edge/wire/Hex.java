package org.sedge.edge.wire;

/** Converts bytes to lower-case hexadecimal digits and back. */
public final class Hex {
    private static final String DIGITS = "0123456789abcdef";

    private Hex() {}

    /** Encodes each byte as two digits. */
    public static String encode(byte[] data) {
        StringBuilder text = new StringBuilder(2 * data.length);
        for (byte b : data) {
            text.append(DIGITS.charAt(b >> 4 & 15)).append(DIGITS.charAt(b & 15));
        }
        return text.toString();
    }

    /**
     * Decodes digits of either case.
     *
     * @throws IllegalArgumentException for anything else
     */
    public static byte[] decode(String text) {
        byte[] data = new byte[text.length() / 2];
        for (int i = 0; i < text.length(); i++) {
            int digit = text.charAt(i) < 128 ? Character.digit(text.charAt(i), 16) : -1;
            if (digit < 0 || text.length() % 2 != 0) {
                throw new IllegalArgumentException("expected hexadecimal digits");
            }
            data[i / 2] = (byte) (data[i / 2] << 4 | digit);
        }
        return data;
    }
}
