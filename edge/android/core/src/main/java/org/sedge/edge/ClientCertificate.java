package org.sedge.edge;

import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.wire.Agreement;
import org.sedge.edge.wire.Digests;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.cert.Certificate;
import java.security.cert.CertificateEncodingException;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.Arrays;
import java.util.Base64;

import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;

/**
 * A device's or a token's certificate for the broker (protocol/spec/enrolment.md, E18). The certificate's key is
 * derived from the secret, so no file holds the key.
 */
public final class ClientCertificate {
    private static final int NAME_BYTES = 16;
    private static final char[] IN_MEMORY = "unused".toCharArray(); // a key store wants a password for every key
    private final X509Certificate made;
    private final PrivateKey key;

    /**
     * Reads a certificate in DER or PEM.
     *
     * @param secret the device's 32-byte secret
     * @throws ConfigError unless it is a certificate for the key that is derived from the secret
     */
    ClientCertificate(byte[] coded, byte[] secret) throws ConfigError {
        try {
            CertificateFactory factory = CertificateFactory.getInstance("X.509");
            made = (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(coded));
        } catch (CertificateException error) {
            throw new ConfigError("certificate", error.getMessage(), "a certificate in PEM");
        }
        try {
            key = Agreement.certificateKey(secret);
            if (isOurs()) {
                return;
            }
        } catch (GeneralSecurityException error) {
            throw new ConfigError("certificate: " + error.getMessage());
        }
        throw new ConfigError(
                "certificate",
                "one for another key",
                "this device's certificate, whose key is derived from its secret");
    }

    /** Checks the key with a trial signature, as Java cannot compute a public key from a private one. */
    private boolean isOurs() throws GeneralSecurityException {
        Signature signature = Signature.getInstance("SHA256withECDSA");
        signature.initSign(key);
        byte[] signed = signature.sign();
        if (!made.getPublicKey().getAlgorithm().equals("EC")) {
            return false;
        }
        signature.initVerify(made.getPublicKey());
        return signature.verify(signed);
    }

    /** Returns the certificate in DER. */
    public byte[] der() {
        try {
            return made.getEncoded();
        } catch (CertificateEncodingException error) {
            throw new IllegalStateException(error); // it came from bytes
        }
    }

    /** Returns the certificate in PEM. */
    String pem() {
        Base64.Encoder lines = Base64.getMimeEncoder(64, "\n".getBytes(StandardCharsets.US_ASCII));
        return "-----BEGIN CERTIFICATE-----\n" + lines.encodeToString(der()) + "\n-----END CERTIFICATE-----\n";
    }

    /** Returns the 16 bytes with which a hello names the certificate (E19). */
    byte[] name() {
        return Arrays.copyOf(Digests.sha256(der()), NAME_BYTES);
    }

    /**
     * Returns the command-line option that restricts the next token to the same device; empty if this is a token's
     * certificate.
     */
    private String option() {
        String holder = made.getSubjectX500Principal().getName().replace("CN=", "");
        return holder.startsWith("join-") ? "" : " --device " + holder;
    }

    /** Returns the key managers that present the certificate in a TLS handshake. */
    public KeyManager[] managers() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        store.setKeyEntry("device", key, IN_MEMORY, new Certificate[] {made});
        KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(store, IN_MEMORY);
        return factory.getKeyManagers();
    }

    /** Returns true if the certificate is valid at this time. */
    public boolean isValid(Instant now) {
        return !now.isBefore(made.getNotBefore().toInstant()) && !now.isAfter(made.getNotAfter().toInstant());
    }

    /** Returns a text for people: how long the certificate is valid, and what to do if it is not valid now. */
    public String said(Instant now) {
        if (now.isBefore(made.getNotBefore().toInstant())) {
            return "it is not valid yet, as this device's clock says " + now.atOffset(ZoneOffset.UTC).toLocalDate()
                    + ": set the clock";
        }
        long days = ChronoUnit.DAYS.between(now, made.getNotAfter().toInstant());
        return isValid(now) ? days + " days left"
                : "it ended " + -days + " days ago: join again with a line of `sedge-cloud device token add" + option() + "`";
    }
}
