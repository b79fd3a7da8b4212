package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.ConfigError;

import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.NoSuchAlgorithmException;
import java.security.Provider;
import java.security.PublicKey;
import java.security.Signature;
import java.security.spec.X509EncodedKeySpec;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The public keys, one of which must have signed an order's policy (spec/policy.md); without keys every order is accepted.
 *
 * <p>Ed25519 comes from the platform or, on an Android without it, from Bouncy Castle, which the app must then include.
 */
public final class PinnedKeys {
    /** No keys: every order is accepted. */
    public static final PinnedKeys NONE = new PinnedKeys();
    public static final int ID_BYTES = 8;
    private static final String ALGORITHM = "Ed25519";
    private static final String BOUNCY_CASTLE = "org.bouncycastle.jce.provider.BouncyCastleProvider";
    /** The prefix of a key's SubjectPublicKeyInfo (RFC 8410); its 32 bytes follow. */
    private static final byte[] HEAD = Hex.decode("302a300506032b6570032100");

    /** The keys as written in a file or a join text. */
    public final List<String> texts;
    private final Map<String, PublicKey> keys;
    /** null: the platform's provider. */
    private final Provider provider;

    private PinnedKeys() {
        texts = Collections.emptyList();
        keys = Collections.emptyMap();
        provider = null;
    }

    /** Reads keys of 64 hex digits each. Throws {@code ConfigError} for an invalid key, or if Ed25519 is unavailable. */
    public PinnedKeys(List<String> texts) throws ConfigError {
        this.texts = Collections.unmodifiableList(new ArrayList<>(texts));
        keys = new TreeMap<>();
        provider = texts.isEmpty() || platformHasIt() ? null : bouncyCastle();
        for (String text : texts) {
            byte[] key = bytes(text);
            keys.put(Hex.encode(Arrays.copyOf(Digests.sha256(key), ID_BYTES)), publicKey(key, text));
        }
    }

    public boolean isEmpty() {
        return keys.isEmpty();
    }

    public boolean has(String id) {
        return keys.containsKey(id);
    }

    /** The keys' ids, for people. */
    public String ids() {
        return String.join(", ", keys.keySet());
    }

    /** Whether a signature of 64 bytes is a pinned key's signature of these bytes. */
    public boolean verify(String id, byte[] signature, byte[] signed) {
        try {
            Signature verifier = provider == null ? Signature.getInstance(ALGORITHM)
                    : Signature.getInstance(ALGORITHM, provider);
            verifier.initVerify(keys.get(id));
            verifier.update(signed);
            return verifier.verify(signature);
        } catch (GeneralSecurityException error) { // not a signature
            return false;
        }
    }

    private PublicKey publicKey(byte[] key, String text) throws ConfigError {
        byte[] coded = Arrays.copyOf(HEAD, HEAD.length + key.length);
        System.arraycopy(key, 0, coded, HEAD.length, key.length);
        try {
            KeyFactory factory = provider == null ? KeyFactory.getInstance(ALGORITHM)
                    : KeyFactory.getInstance(ALGORITHM, provider);
            return factory.generatePublic(new X509EncodedKeySpec(coded));
        } catch (GeneralSecurityException error) {
            throw refused(text);
        }
    }

    private static byte[] bytes(String text) throws ConfigError {
        try {
            byte[] key = Hex.decode(text);
            if (key.length == 32) {
                return key;
            }
        } catch (IllegalArgumentException error) {
            throw refused(text);
        }
        throw refused(text);
    }

    private static ConfigError refused(String text) {
        return new ConfigError(
                "trust.keys", "'" + text + "'", "64 hex digits, as `sedge-cloud key show` prints them");
    }

    private static boolean platformHasIt() {
        try {
            KeyFactory.getInstance(ALGORITHM);
            Signature.getInstance(ALGORITHM);
            return true;
        } catch (NoSuchAlgorithmException error) {
            return false;
        }
    }

    private static Provider bouncyCastle() throws ConfigError {
        try {
            return (Provider) Class.forName(BOUNCY_CASTLE).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException error) {
            throw new ConfigError("trust.keys", "no Ed25519 on this device", "Bouncy Castle among the app's libraries");
        }
    }
}
