package org.sedge.edge.host;

import java.io.IOException;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.Collection;

import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Creates TLS contexts that trust chosen certificate authorities. */
final class Authorities {
    private Authorities() {}

    /** Returns a TLS context that trusts only these authorities, or those of the system if {@code own} is null. */
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
