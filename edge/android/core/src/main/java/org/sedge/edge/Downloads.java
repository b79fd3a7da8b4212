package org.sedge.edge;

import org.jspecify.annotations.Nullable;

import java.net.URI;
import java.net.URISyntaxException;
import java.security.cert.Certificate;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.Locale;
import java.util.Set;

/**
 * The web servers from which a device may download large blobs when an order names them. Everything else arrives over
 * MQTT.
 */
public final class Downloads {
    /** Allows every server that an order names. Android itself only permits plain http if the app's manifest does. */
    public static final Downloads ANY = new Downloads(true, true, Collections.<String>emptySet(), null);
    public static final Downloads NEVER = new Downloads(false, false, Collections.<String>emptySet(), null);
    private static final int MAX_URL = 2048;

    /** The certificate authorities that may sign the servers' certificates; null to trust the system's authorities. */
    public final @Nullable Collection<? extends Certificate> authorities;
    private final boolean secure;
    private final boolean plain;
    private final Set<String> hosts;

    private Downloads(boolean secure, boolean plain, Set<String> hosts, Collection<? extends Certificate> authorities) {
        this.secure = secure;
        this.plain = plain;
        this.hosts = hosts;
        this.authorities = authorities;
    }

    /**
     * Allows downloads from the given servers only.
     *
     * @param plain whether http is allowed in addition to https
     * @param hosts the servers' names; empty to allow any server
     * @param caPem the authority that signed their certificates, in PEM; null to trust the system's authorities
     * @throws SedgeException if {@code caPem} has no certificate
     */
    public static Downloads from(boolean plain, Collection<String> hosts, @Nullable String caPem) throws SedgeException {
        Set<String> names = new HashSet<>();
        for (String host : hosts) {
            names.add(host.toLowerCase(Locale.ROOT));
        }
        return new Downloads(true, plain, names,
                caPem == null ? null : AgentConfig.certificates(caPem, "download.ca_file"));
    }

    /** Returns true if this URL may be requested. */
    public boolean permits(String url) {
        try {
            URI parts = new URI(url);
            String host = parts.getHost();
            boolean usable = url.length() <= MAX_URL && host != null && parts.getUserInfo() == null
                    && parts.getPort() != 0 && parts.getPort() < 65536;
            boolean known = "https".equals(parts.getScheme()) ? secure : plain && "http".equals(parts.getScheme());
            return usable && known && (hosts.isEmpty() || hosts.contains(host.toLowerCase(Locale.ROOT)));
        } catch (URISyntaxException error) {
            return false;
        }
    }
}
