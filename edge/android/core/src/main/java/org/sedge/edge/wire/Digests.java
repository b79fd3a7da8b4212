package org.sedge.edge.wire;

import java.security.GeneralSecurityException;
import java.security.MessageDigest;

import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Computes SHA-256 and HMAC-SHA256, which every Java platform provides. */
public final class Digests {
    private Digests() {}

    /** Returns a new SHA-256 digest. */
    public static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Returns the SHA-256 of the data. */
    public static byte[] sha256(byte[] data) {
        return sha256().digest(data);
    }

    /** Returns the HMAC-SHA256 of the concatenated parts. */
    public static byte[] hmac(byte[] key, byte[]... parts) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            for (byte[] part : parts) {
                mac.update(part);
            }
            return mac.doFinal();
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }
}
