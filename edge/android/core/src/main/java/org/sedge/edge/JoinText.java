package org.sedge.edge;

import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Json;

import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;

/**
 * A device's enrolment as one line of text: {@code sedge:} and the base64url, without padding, of a JSON object with
 * {@code device}, {@code fleet}, {@code url}, {@code secret} (64 hex digits) and perhaps {@code ca} (PEM).
 */
public final class JoinText {
    private static final String PREFIX = "sedge:";

    private JoinText() {}

    /** The configuration in the text. Throws {@code ConfigError}, which never shows the secret. */
    public static AgentConfig parse(String text) throws SedgeException {
        String trimmed = text == null ? "" : text.trim();
        if (!trimmed.startsWith(PREFIX)) {
            throw refused("does not begin with " + PREFIX);
        }
        try {
            byte[] json = Base64.getUrlDecoder().decode(trimmed.substring(PREFIX.length()));
            Map<?, ?> found = (Map<?, ?>) Json.parse(new String(json, StandardCharsets.UTF_8));
            byte[] secret = Hex.decode(text(found, "secret"));
            return new AgentConfig(
                    text(found, "device"), text(found, "fleet"), text(found, "url"), secret,
                    found.containsKey("ca") ? text(found, "ca") : null);
        } catch (IllegalArgumentException | ClassCastException error) {
            throw refused("its content is cut off or damaged");
        } catch (SedgeException.ConfigError error) {
            throw refused(error.getMessage());
        }
    }

    private static String text(Map<?, ?> found, String key) throws SedgeException {
        Object value = found.get(key);
        if (!(value instanceof String)) {
            throw new SedgeException.ConfigError(key, "nothing", "a string");
        }
        return (String) value;
    }

    private static SedgeException refused(String why) {
        return new SedgeException.ConfigError(
                "join text: " + why + "; expected the whole line that `sedge-cloud device add --join` printed");
    }
}
