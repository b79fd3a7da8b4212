package org.sedge.edge.wire;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** The keys derived from a device's secret (WIRE.md, section 2). */
public final class DeviceKeys {
    public final byte[] up;
    public final byte[] down;
    public final String password;

    /** Derives the keys from a secret of 32 bytes. */
    public DeviceKeys(byte[] secret) {
        byte[] extracted = Digests.hmac(new byte[32], secret);
        up = derived(extracted, "up");
        down = derived(extracted, "down");
        password = Hex.encode(derived(extracted, "mqtt password"));
    }

    /** Returns bytes that identify these keys without revealing anything about them. */
    public byte[] fingerprint() {
        return Arrays.copyOf(Digests.sha256(up), 16);
    }

    /** Derives 32 bytes for one purpose from a 32-byte secret. */
    static byte[] derive(byte[] secret, String purpose) {
        return derived(Digests.hmac(new byte[32], secret), purpose);
    }

    private static byte[] derived(byte[] extracted, String purpose) {
        return Digests.hmac(extracted, ("sedge/1 " + purpose).getBytes(StandardCharsets.US_ASCII), new byte[] {1});
    }
}
