package org.sedge.edge.host;

import java.io.IOException;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.Collection;

import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** TLS with a choice of certificate authorities. */
final class Authorities {
    private Authorities() {}

    /** TLS that trusts only these authorities; null: those of the system. */
    static SSLContext context(Collection<? extends Certificate> own) throws GeneralSecurityException, IOException {
        SSLContext context = SSLContext.getInstance("TLS");
        if (own == null) {
            context.init(null, null, null);
            return context;
        }
        KeyStore authorities = KeyStore.getInstance(KeyStore.getDefaultType());
        authorities.load(null, null);
        for (Certificate found : own) {
            authorities.setCertificateEntry("authority-" + authorities.size(), found);
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(authorities);
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }
}
