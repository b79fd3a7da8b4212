package org.sedge.edge;

import org.sedge.edge.wire.PinnedKeys;

import org.jspecify.annotations.Nullable;

import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.util.Collection;
import java.util.regex.Pattern;

/** A device's identity and the address of its broker (protocol/spec/enrolment.md). */
public final class AgentConfig {
    private static final Pattern ID = Pattern.compile("[a-z0-9][a-z0-9-]{0,47}");

    public final String device;
    public final String fleet;
    /** {@code mqtt://host[:port]} or {@code mqtts://host[:port]}. */
    public final String url;
    /**
     * The certificate authority that signed the broker's certificate, in PEM; null to trust the system's authorities.
     */
    public final @Nullable String caPem;
    /** The host, port and TLS setting, parsed from {@link #url}. */
    public final String host;
    public final int port;
    public final boolean tls;
    /** The limits on the device's work. */
    public final Limits limits;
    /** The web servers from which the device may download large blobs. */
    public final Downloads downloads;
    /** If there are any keys, an order needs a policy that one of them has signed. */
    public final PinnedKeys pinned;
    /** The device's certificate, for a broker that asks for one. */
    public final @Nullable ClientCertificate certificate;
    private final byte[] secret;

    /** @throws ConfigError if a value is invalid */
    public AgentConfig(String device, String fleet, String url, byte[] secret, @Nullable String caPem)
            throws SedgeException {
        this(device, fleet, url, secret, caPem, Limits.DEFAULT, Downloads.ANY, PinnedKeys.NONE, null);
    }

    private AgentConfig(String device, String fleet, String url, byte[] secret, String caPem, Limits limits,
            Downloads downloads, PinnedKeys pinned, ClientCertificate certificate) throws SedgeException {
        this.limits = limits;
        this.downloads = downloads;
        this.pinned = pinned;
        this.device = id("device", device);
        this.fleet = id("fleet", fleet);
        if (secret == null || secret.length != 32) {
            String found = secret == null ? null : "'" + secret.length + " bytes'";
            throw new SedgeException.ConfigError("secret", found, "64 hex digits");
        }
        this.url = url;
        this.secret = secret.clone();
        this.caPem = caPem;
        URI parts = parsed(url);
        tls = "mqtts".equals(parts.getScheme());
        host = parts.getHost();
        port = parts.getPort() > 0 ? parts.getPort() : tls ? 8883 : 1883;
        certificates();
        if ((caPem != null || certificate != null) && !tls) {
            String key = caPem != null ? "broker.ca_file" : "broker.cert_file";
            throw new SedgeException.ConfigError(key, "a certificate", "an mqtts:// url together with it, not " + url);
        }
        this.certificate = certificate;
    }

    /** Returns a copy of this configuration with other limits. */
    public AgentConfig with(Limits others) throws SedgeException {
        return new AgentConfig(device, fleet, url, secret, caPem, others, downloads, pinned, certificate);
    }

    /** Returns a copy of this configuration with other web servers. */
    public AgentConfig with(Downloads others) throws SedgeException {
        return new AgentConfig(device, fleet, url, secret, caPem, limits, others, pinned, certificate);
    }

    /** Returns a copy of this configuration with other pinned keys. */
    public AgentConfig with(PinnedKeys others) throws SedgeException {
        return new AgentConfig(device, fleet, url, secret, caPem, limits, downloads, others, certificate);
    }

    /**
     * Returns a copy of this configuration with the device's own certificate, in DER or PEM.
     *
     * @throws ConfigError if the certificate is for another key
     */
    public AgentConfig certified(byte[] coded) throws SedgeException {
        return new AgentConfig(
                device, fleet, url, secret, caPem, limits, downloads, pinned, new ClientCertificate(coded, secret));
    }

    /** Returns a copy of the 32-byte secret that the device shares with the coordinator. */
    public byte[] secret() {
        return secret.clone();
    }

    /** Parses a join text, as printed by {@code sedge-cloud device add --join}. */
    public static AgentConfig fromJoinText(String text) throws SedgeException {
        return JoinText.parse(text);
    }

    /**
     * Returns the certificates in {@link #caPem}, or null if that is null.
     *
     * @throws ConfigError if the text has no certificate
     */
    public @Nullable Collection<? extends Certificate> certificates() throws SedgeException {
        return caPem == null ? null : certificates(caPem, "broker.ca_file");
    }

    static Collection<? extends Certificate> certificates(String text, String key) throws SedgeException {
        try {
            InputStream pem = new ByteArrayInputStream(text.getBytes(StandardCharsets.US_ASCII));
            Collection<? extends Certificate> found = CertificateFactory.getInstance("X.509").generateCertificates(pem);
            if (!found.isEmpty()) {
                return found;
            }
        } catch (CertificateException error) {
            throw new SedgeException.ConfigError(key, error.getMessage(), "certificates as PEM");
        }
        throw new SedgeException.ConfigError(key, "no certificate", "certificates as PEM");
    }

    private static String id(String key, String value) throws SedgeException {
        if (value == null) {
            throw new SedgeException.ConfigError(key, null, "a string");
        }
        if (!ID.matcher(value).matches()) {
            throw new SedgeException.ConfigError(
                    key, "'" + value + "'", "1 to 48 of a-z, 0-9 and '-', not starting with '-'");
        }
        return value;
    }

    private static URI parsed(String url) throws SedgeException {
        if (url == null) {
            throw new SedgeException.ConfigError("broker.url", null, "a string");
        }
        try {
            URI parts = new URI(url);
            boolean known = "mqtt".equals(parts.getScheme()) || "mqtts".equals(parts.getScheme());
            boolean bare = parts.getUserInfo() == null && parts.getQuery() == null && parts.getFragment() == null;
            boolean rooted = parts.getPath() == null || parts.getPath().isEmpty() || parts.getPath().equals("/");
            if (known && bare && rooted && parts.getHost() != null && parts.getPort() != 0
                    && parts.getPort() < 65536) {
                return parts;
            }
        } catch (URISyntaxException error) {
            throw refused(url);
        }
        throw refused(url);
    }

    /** Returns the error for an invalid URL. It omits everything before an @, which may contain a password. */
    private static SedgeException refused(String url) {
        int at = url.lastIndexOf('@');
        int user = url.indexOf("://") + 3;
        String shown = at < 0 ? url : url.substring(0, Math.min(user, at)) + "..." + url.substring(at);
        return new SedgeException.ConfigError(
                "broker.url", "'" + shown + "'", "mqtt://host[:port] or mqtts://host[:port]");
    }
}
