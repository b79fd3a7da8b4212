package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.FrameError;

import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.PrivateKey;
import java.security.interfaces.ECPublicKey;
import java.security.spec.ECGenParameterSpec;
import java.security.spec.ECParameterSpec;
import java.security.spec.ECPoint;
import java.security.spec.ECPrivateKeySpec;
import java.security.spec.ECPublicKeySpec;
import java.security.spec.EllipticCurve;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Arrays;

import javax.crypto.KeyAgreement;

/** Derives the secret shared by a device and its coordinator from their key pairs (enrolment.md, E10). */
public final class Agreement {
    /** A device's key pair. The public key has 65 bytes; the private key is in PKCS #8 format. */
    public static final class Pair {
        public final byte[] point;
        public final byte[] coded;

        public Pair(byte[] point, byte[] coded) {
            this.point = point;
            this.coded = coded;
        }

        /** Generates a new key pair. */
        public static Pair make() {
            try {
                KeyPair pair = generator().generateKeyPair();
                ECPoint at = ((ECPublicKey) pair.getPublic()).getW();
                byte[] point = new byte[65];
                point[0] = 4;
                put(at.getAffineX(), point, 1);
                put(at.getAffineY(), point, 33);
                return new Pair(point, pair.getPrivate().getEncoded());
            } catch (GeneralSecurityException error) {
                throw new IllegalStateException(error); // cannot happen: every Android version supports P-256
            }
        }

        /** Returns the first 16 bytes of the public key's hash, with which an answer identifies the request. */
        public byte[] name() {
            return Arrays.copyOf(Digests.sha256(point), 16);
        }

        private static void put(BigInteger number, byte[] out, int at) {
            byte[] bytes = number.toByteArray();
            int length = Math.min(32, bytes.length);
            System.arraycopy(bytes, bytes.length - length, out, at + 32 - length, length);
        }
    }

    public final byte[] secret;

    /** @throws FrameError if the other public key is not a point on the curve */
    public Agreement(Pair own, byte[] other, String fleet, String token) throws FrameError {
        try {
            PrivateKey key = KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(own.coded));
            secret = agreed(key, own.point, other, fleet, token);
        } catch (GeneralSecurityException | IllegalArgumentException error) {
            throw new FrameError("public key: not a point on the curve P-256");
        }
    }

    private static byte[] agreed(PrivateKey key, byte[] point, byte[] other, String fleet, String token)
            throws GeneralSecurityException {
        KeyAgreement agreement = KeyAgreement.getInstance("ECDH");
        agreement.init(key);
        agreement.doPhase(KeyFactory.getInstance("EC").generatePublic(
                new ECPublicKeySpec(checked(other), curve())), true);
        String head = fleet + "\0" + token + "\0";
        byte[] said = Arrays.copyOf(head.getBytes(StandardCharsets.US_ASCII), head.length() + point.length);
        System.arraycopy(point, 0, said, head.length(), point.length);
        return DeviceKeys.derive(agreement.generateSecret(), "join " + Hex.encode(Digests.sha256(said)));
    }

    /** Returns the proof that the sender of a JOIN with this name has the private key. */
    public byte[] asks(String name) {
        return proof("join asks", name);
    }

    /** Returns the proof that the sender of a JOINED with this name is the coordinator. */
    public byte[] answers(String name) {
        return proof("join answers", name);
    }

    private byte[] proof(String purpose, String name) {
        byte[] key = DeviceKeys.derive(secret, purpose);
        return Arrays.copyOf(Digests.hmac(key, name.getBytes(StandardCharsets.US_ASCII)), 16);
    }

    /** Returns the private key for the certificate of a device or token, derived from its secret (E18). */
    public static PrivateKey certificateKey(byte[] secret) throws GeneralSecurityException {
        ECParameterSpec curve = curve();
        BigInteger last = curve.getOrder().subtract(BigInteger.ONE);
        BigInteger number = new BigInteger(1, DeviceKeys.derive(secret, "certificate")).mod(last).add(BigInteger.ONE);
        return KeyFactory.getInstance("EC").generatePrivate(new ECPrivateKeySpec(number, curve));
    }

    private static KeyPairGenerator generator() throws GeneralSecurityException {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
        generator.initialize(new ECGenParameterSpec("secp256r1"));
        return generator;
    }

    private static ECParameterSpec curve() throws GeneralSecurityException {
        return ((ECPublicKey) generator().generateKeyPair().getPublic()).getParams();
    }

    /** Decodes a point. Also checks that it is on the curve, because not every platform checks this. */
    private static ECPoint checked(byte[] bytes) throws GeneralSecurityException {
        if (bytes.length != 65 || bytes[0] != 4) {
            throw new GeneralSecurityException("not an uncompressed point");
        }
        EllipticCurve curve = curve().getCurve();
        BigInteger p = ((java.security.spec.ECFieldFp) curve.getField()).getP();
        BigInteger x = new BigInteger(1, Arrays.copyOfRange(bytes, 1, 33));
        BigInteger y = new BigInteger(1, Arrays.copyOfRange(bytes, 33, 65));
        BigInteger right = x.pow(3).add(curve.getA().multiply(x)).add(curve.getB());
        if (x.compareTo(p) >= 0 || y.compareTo(p) >= 0 || y.pow(2).subtract(right).mod(p).signum() != 0) {
            throw new GeneralSecurityException("not on the curve");
        }
        return new ECPoint(x, y);
    }
}
