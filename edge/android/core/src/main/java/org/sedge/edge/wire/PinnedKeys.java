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
 * The public keys, one of which must have signed an order's policy (spec/policy.md); without keys every order is accepted.
 *
 * <p>Ed25519 comes from the platform or, on an Android without it, from Bouncy Castle, which the app must then include.
 */
public final class PinnedKeys {
    /** No keys: every order is accepted. */
    public static final PinnedKeys NONE = new PinnedKeys();
    public static final int ID_BYTES = 8;
    /** The bytes before what is signed: the key's id and the signature. */
    public static final int HEAD_BYTES = ID_BYTES + 64;
    /** The number of replacements that a device remembers; it learns no more. */
    private static final int MAX_REPLACED = 64;
    private static final byte[] CONTEXT = "sedge key 1\n".getBytes(StandardCharsets.US_ASCII);
    private static final String ALGORITHM = "Ed25519";
    private static final String BOUNCY_CASTLE = "org.bouncycastle.jce.provider.BouncyCastleProvider";
    /** The prefix of a key's SubjectPublicKeyInfo (RFC 8410); its 32 bytes follow. */
    private static final byte[] HEAD = Hex.decode("302a300506032b6570032100");

    /** The keys as written in a file or a join text. */
    public final List<String> texts;
    /** The public keys of 32 bytes each, by id. */
    private final Map<String, byte[]> keys;
    /** null: the platform's provider. */
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

    /** Reads keys of 64 hex digits each. Throws {@code ConfigError} for an invalid key, or if Ed25519 is unavailable. */
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

    /** The 8 bytes that name a public key, in hex digits. */
    private static String id(byte[] key) {
        return Hex.encode(Arrays.copyOf(Digests.sha256(key), ID_BYTES));
    }

    /** The keys that count: the newest in the place of each pinned one. {@code replaced} has public keys by id. */
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

    /** The replacements that lead on from a key, in order. */
    private static Map<String, byte[]> line(String id, Map<String, byte[]> replaced) {
        Map<String, byte[]> found = new LinkedHashMap<>();
        for (String old = id; replaced.containsKey(old); old = id(replaced.get(old))) {
            found.put(old, replaced.get(old));
        }
        return found;
    }

    /** The id of the newest key in the place of one; its own if it was not replaced. */
    public static String newest(String id, Map<String, byte[]> replaced) {
        String found = id;
        for (byte[] newer : line(id, replaced).values()) {
            found = id(newer);
        }
        return found;
    }

    /** The replacements that lead from a pinned key, with those that a chain adds (P8); its other statements are skipped. */
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

    /** The keys' ids, for people. */
    public String ids() {
        return String.join(", ", keys.keySet());
    }

    /** Whether a signature of 64 bytes is the signature of these bytes by one of the keys. */
    public boolean verify(String id, byte[] signature, byte[] signed) {
        try {
            Signature verifier = provider == null ? Signature.getInstance(ALGORITHM)
                    : Signature.getInstance(ALGORITHM, provider);
            verifier.initVerify(publicKey(keys.get(id)));
            verifier.update(signed);
            return verifier.verify(signature);
        } catch (GeneralSecurityException error) { // not a signature, or a replaced key's successor is no key
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
