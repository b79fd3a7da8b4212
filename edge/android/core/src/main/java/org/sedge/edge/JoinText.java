package org.sedge.edge;

import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Json;
import org.sedge.edge.wire.PinnedKeys;

import org.jspecify.annotations.Nullable;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;

/**
 * A device's enrolment as one line of text: {@code sedge:}, followed by a JSON object in base64url without padding. The
 * object has {@code device}, {@code fleet}, {@code url} and {@code secret} (64 hex digits). It may also have {@code ca}
 * and {@code certificate} (PEM each) and {@code trust}, a list of public keys (64 hex digits each).
 */
public final class JoinText {
    private static final String PREFIX = "sedge:";

    private JoinText() {}

    /**
     * Parses the text of an enrolled device.
     *
     * @throws ConfigError if the text is invalid; the message never shows the secret
     */
    public static AgentConfig parse(String text) throws SedgeException {
        try {
            Map<?, ?> found = said(text);
            byte[] secret = Hex.decode(text(found, "secret"));
            AgentConfig config = new AgentConfig(
                    text(found, "device"), text(found, "fleet"), text(found, "url"), secret,
                    found.containsKey("ca") ? text(found, "ca") : null);
            return completed(config, found);
        } catch (IllegalArgumentException | ClassCastException error) {
            throw refused("its content is cut off or damaged");
        } catch (SedgeException.ConfigError error) {
            throw refused(error.getMessage());
        }
    }

    /**
     * Parses the text of a token (E8). Returns null if the text enrols one particular device.
     *
     * @throws ConfigError if the text is invalid
     */
    public static @Nullable JoinToken token(String text) throws SedgeException {
        try {
            Map<?, ?> found = said(text);
            if (!found.containsKey("token")) {
                return null;
            }
            AgentConfig account = new AgentConfig(
                    text(found, "token"), text(found, "fleet"), text(found, "url"), Hex.decode(text(found, "key")),
                    found.containsKey("ca") ? text(found, "ca") : null);
            String device = found.containsKey("device") ? text(found, "device") : "";
            return new JoinToken(completed(account, found), Hex.decode(text(found, "point")), device);
        } catch (IllegalArgumentException | ClassCastException error) {
            throw refused("its content is cut off or damaged");
        } catch (SedgeException.ConfigError error) {
            throw refused(error.getMessage());
        }
    }

    /** Returns the join text of a configuration. */
    public static String of(AgentConfig config) {
        StringBuilder json = new StringBuilder("{\"device\":\"").append(config.device).append("\",\"fleet\":\"")
                .append(config.fleet).append("\",\"url\":\"").append(config.url).append("\",\"secret\":\"")
                .append(Hex.encode(config.secret())).append('"');
        if (config.caPem != null) {
            json.append(",\"ca\":\"").append(Json.escaped(config.caPem)).append('"');
        }
        if (config.certificate != null) {
            json.append(",\"certificate\":\"").append(Json.escaped(config.certificate.pem())).append('"');
        }
        if (!config.pinned.isEmpty()) {
            json.append(",\"trust\":[\"").append(String.join("\",\"", config.pinned.texts)).append("\"]");
        }
        byte[] coded = json.append('}').toString().getBytes(StandardCharsets.UTF_8);
        return PREFIX + Base64.getUrlEncoder().withoutPadding().encodeToString(coded);
    }

    private static Map<?, ?> said(String text) throws SedgeException {
        String trimmed = text == null ? "" : text.trim();
        if (!trimmed.startsWith(PREFIX)) {
            throw refused("does not begin with " + PREFIX);
        }
        byte[] json = Base64.getUrlDecoder().decode(trimmed.substring(PREFIX.length()));
        return (Map<?, ?>) Json.parse(new String(json, StandardCharsets.UTF_8));
    }

    private static AgentConfig completed(AgentConfig config, Map<?, ?> found) throws SedgeException {
        boolean pins = found.containsKey("trust");
        AgentConfig pinned = pins ? config.with(new PinnedKeys(texts(found.get("trust")))) : config;
        boolean certified = found.containsKey("certificate");
        return certified ? pinned.certified(text(found, "certificate").getBytes(StandardCharsets.UTF_8)) : pinned;
    }

    private static List<String> texts(Object list) {
        List<String> found = new ArrayList<>();
        for (Object value : (List<?>) list) {
            found.add((String) value);
        }
        return found;
    }

    private static String text(Map<?, ?> found, String key) throws SedgeException {
        Object value = found.get(key);
        if (!(value instanceof String)) {
            throw new SedgeException.ConfigError(key, null, "a string");
        }
        return (String) value;
    }

    private static SedgeException refused(String why) {
        return new SedgeException.ConfigError(
                "join text: " + why + "; expected the whole line that `sedge-cloud device add --join` or `device token add` printed");
    }
}
