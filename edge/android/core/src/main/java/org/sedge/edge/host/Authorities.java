package org.sedge.edge.host;

import org.jspecify.annotations.Nullable;
import org.sedge.edge.ClientCertificate;

import java.io.IOException;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.Collection;

import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/** Creates TLS contexts that trust chosen certificate authorities and optionally present our own certificate. */
final class Authorities {
    private Authorities() {}

    /**
     * Returns a TLS context that trusts only these authorities, or the system's authorities if {@code trusted} is null.
     *
     * @param own the certificate to present to a server that asks for one
     */
    static SSLContext context(@Nullable Collection<? extends Certificate> trusted, @Nullable ClientCertificate own)
            throws GeneralSecurityException, IOException {
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(own == null ? null : own.managers(), trusted == null ? null : managers(trusted), null);
        return context;
    }

    private static TrustManager[] managers(Collection<? extends Certificate> trusted)
            throws GeneralSecurityException, IOException {
        KeyStore authorities = KeyStore.getInstance(KeyStore.getDefaultType());
        authorities.load(null, null);
        for (Certificate found : trusted) {
            authorities.setCertificateEntry("authority-" + authorities.size(), found);
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(authorities);
        return trust.getTrustManagers();
    }
}
