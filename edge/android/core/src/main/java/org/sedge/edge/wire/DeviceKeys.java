package org.sedge.edge.wire;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** The keys that follow from a device's secret (WIRE.md, section 2). */
public final class DeviceKeys {
    public final byte[] up;
    public final byte[] down;
    public final String password;

    /** From the secret of 32 bytes. */
    public DeviceKeys(byte[] secret) {
        byte[] extracted = Digests.hmac(new byte[32], secret);
        up = derived(extracted, "up");
        down = derived(extracted, "down");
        password = Hex.encode(derived(extracted, "mqtt password"));
    }

    /** Tells these keys from others, and nothing about them. */
    public byte[] fingerprint() {
        return Arrays.copyOf(Digests.sha256(up), 16);
    }

    /** 32 bytes for one purpose, from 32 bytes that are a secret. */
    static byte[] derive(byte[] secret, String purpose) {
        return derived(Digests.hmac(new byte[32], secret), purpose);
    }

    private static byte[] derived(byte[] extracted, String purpose) {
        return Digests.hmac(extracted, ("sedge/1 " + purpose).getBytes(StandardCharsets.US_ASCII), new byte[] {1});
    }
}
