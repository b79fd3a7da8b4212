package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.ConfigError;

import java.nio.charset.StandardCharsets;
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
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The public keys that a device trusts. One of them must have signed an order's policy (spec/policy.md). Without keys,
 * every order is accepted.
 *
 * <p>Ed25519 comes from the platform or, on Android versions without it, from Bouncy Castle, which the app must then
 * include.
 */
public final class PinnedKeys {
    /** No keys, so that every order is accepted. */
    public static final PinnedKeys NONE = new PinnedKeys();
    public static final int ID_BYTES = 8;
    /** The number of bytes before the signed content: the key's id and the signature. */
    public static final int HEAD_BYTES = ID_BYTES + 64;
    /** The number of key replacements that a device can remember. It ignores further ones. */
    private static final int MAX_REPLACED = 64;
    private static final byte[] CONTEXT = "sedge key 1\n".getBytes(StandardCharsets.US_ASCII);
    private static final String ALGORITHM = "Ed25519";
    private static final String BOUNCY_CASTLE = "org.bouncycastle.jce.provider.BouncyCastleProvider";
    /** The bytes before a key's own 32 bytes in its SubjectPublicKeyInfo (RFC 8410). */
    private static final byte[] HEAD = Hex.decode("302a300506032b6570032100");

    /** The keys as written in a file or a join text. */
    public final List<String> texts;
    /** The public keys, 32 bytes each, keyed by id. */
    private final Map<String, byte[]> keys;
    /** The provider of Ed25519; null for the platform's default. */
    private final Provider provider;

    private PinnedKeys() {
        texts = Collections.emptyList();
        keys = Collections.emptyMap();
        provider = null;
    }

    private PinnedKeys(PinnedKeys pinned, Map<String, byte[]> keys) {
        texts = pinned.texts;
        provider = pinned.provider;
        this.keys = keys;
    }

    /**
     * Parses keys of 64 hex digits each.
     *
     * @throws ConfigError for an invalid key, or if Ed25519 is unavailable
     */
    public PinnedKeys(List<String> texts) throws ConfigError {
        this.texts = Collections.unmodifiableList(new ArrayList<>(texts));
        keys = new TreeMap<>();
        provider = texts.isEmpty() || platformHasIt() ? null : bouncyCastle();
        for (String text : texts) {
            byte[] key = bytes(text);
            try {
                publicKey(key);
            } catch (GeneralSecurityException error) {
                throw refused(text);
            }
            keys.put(id(key), key);
        }
    }

    /** Returns the id of a public key: 8 bytes in hex digits. */
    private static String id(byte[] key) {
        return Hex.encode(Arrays.copyOf(Digests.sha256(key), ID_BYTES));
    }

    /**
     * Returns the keys that are valid now: each pinned key, or the newest one that has replaced it.
     *
     * @param replaced the new public keys, keyed by the ids of the old ones
     */
    public PinnedKeys after(Map<String, byte[]> replaced) {
        Map<String, byte[]> found = new TreeMap<>();
        for (String pinned : keys.keySet()) {
            byte[] key = keys.get(pinned);
            for (byte[] newer : line(pinned, replaced).values()) {
                key = newer;
            }
            found.put(id(key), key);
        }
        return new PinnedKeys(this, found);
    }

    /** Returns a key's successive replacements, in order. */
    private static Map<String, byte[]> line(String id, Map<String, byte[]> replaced) {
        Map<String, byte[]> found = new LinkedHashMap<>();
        for (String old = id; replaced.containsKey(old); old = id(replaced.get(old))) {
            found.put(old, replaced.get(old));
        }
        return found;
    }

    /**
     * Returns the id of the newest key that has replaced the given one, or the given id if the key was not replaced.
     */
    public static String newest(String id, Map<String, byte[]> replaced) {
        String found = id;
        for (byte[] newer : line(id, replaced).values()) {
            found = id(newer);
        }
        return found;
    }

    /**
     * Returns the known replacements that start from a pinned key, plus those that the statements in a chain prove
     * (P8). Other statements are ignored.
     */
    public Map<String, byte[]> learned(Map<String, byte[]> replaced, List<byte[]> chain) {
        Map<String, byte[]> found = new LinkedHashMap<>();
        for (String pinned : keys.keySet()) {
            found.putAll(line(pinned, replaced));
        }
        for (byte[] statement : chain) {
            String old = Hex.encode(Arrays.copyOf(statement, ID_BYTES));
            byte[] key = Arrays.copyOfRange(statement, HEAD_BYTES, statement.length);
            PinnedKeys counting = after(found);
            boolean isBack = id(key).equals(old) || found.containsKey(id(key));
            if (!counting.has(old) || isBack || found.size() >= MAX_REPLACED) {
                continue;
            }
            byte[] signed = Arrays.copyOf(CONTEXT, CONTEXT.length + key.length);
            System.arraycopy(key, 0, signed, CONTEXT.length, key.length);
            if (counting.verify(old, Arrays.copyOfRange(statement, ID_BYTES, HEAD_BYTES), signed)) {
                found.put(old, key);
            }
        }
        return found;
    }

    public boolean isEmpty() {
        return keys.isEmpty();
    }

    public boolean has(String id) {
        return keys.containsKey(id);
    }

    /** Lists the keys' ids for messages. */
    public String ids() {
        return String.join(", ", keys.keySet());
    }

    /** Returns true if the 64-byte signature of these bytes was made with the key {@code id}. */
    public boolean verify(String id, byte[] signature, byte[] signed) {
        try {
            Signature verifier = provider == null ? Signature.getInstance(ALGORITHM)
                    : Signature.getInstance(ALGORITHM, provider);
            verifier.initVerify(publicKey(keys.get(id)));
            verifier.update(signed);
            return verifier.verify(signature);
        } catch (GeneralSecurityException error) { // a malformed signature, or a malformed new key
            return false;
        }
    }

    private PublicKey publicKey(byte[] key) throws GeneralSecurityException {
        byte[] coded = Arrays.copyOf(HEAD, HEAD.length + key.length);
        System.arraycopy(key, 0, coded, HEAD.length, key.length);
        KeyFactory factory = provider == null ? KeyFactory.getInstance(ALGORITHM)
                : KeyFactory.getInstance(ALGORITHM, provider);
        return factory.generatePublic(new X509EncodedKeySpec(coded));
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
