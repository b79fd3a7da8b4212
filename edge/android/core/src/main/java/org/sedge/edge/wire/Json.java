package org.sedge.edge.wire;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Parses strict JSON (RFC 8259). Objects become maps, arrays become lists, integers become Long, and other numbers
 * become Double.
 *
 * <p>Android has its own parser, but in a package that desktop JVMs do not have. This one is enough for manifests and
 * join lines.
 */
public final class Json {
    private static final int MAX_DEPTH = 64;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /**
     * Parses the text.
     *
     * @throws IllegalArgumentException for invalid JSON; the message says where
     */
    public static Object parse(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.space();
        if (json.at < text.length()) {
            throw json.wrong();
        }
        return value;
    }

    /** Returns the text escaped for use inside a JSON string. */
    public static String escaped(String text) {
        StringBuilder found = new StringBuilder();
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                found.append('\\').append(c);
            } else if (c < ' ') {
                found.append(String.format("\\u%04x", (int) c));
            } else {
                found.append(c);
            }
        }
        return found.toString();
    }

    private Object value(int depth) {
        space();
        if (depth > MAX_DEPTH || at >= text.length()) {
            throw wrong();
        }
        switch (text.charAt(at)) {
            case '{':
                return object(depth);
            case '[':
                return array(depth);
            case '"':
                return string();
            case 't':
                return word("true", Boolean.TRUE);
            case 'f':
                return word("false", Boolean.FALSE);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> found = new LinkedHashMap<>();
        at++;
        if (taken('}')) {
            return found;
        }
        do {
            space();
            String key = string();
            expect(':');
            found.put(key, value(depth + 1));
        } while (taken(','));
        expect('}');
        return found;
    }

    private List<Object> array(int depth) {
        List<Object> found = new ArrayList<>();
        at++;
        if (taken(']')) {
            return found;
        }
        do {
            found.add(value(depth + 1));
        } while (taken(','));
        expect(']');
        return found;
    }

    private String string() {
        if (at >= text.length() || text.charAt(at) != '"') {
            throw wrong();
        }
        StringBuilder found = new StringBuilder();
        for (at++; at < text.length() && text.charAt(at) != '"'; at++) {
            char c = text.charAt(at);
            if (c < ' ') {
                throw wrong();
            }
            found.append(c == '\\' ? escaped() : c);
        }
        expect('"');
        return found.toString();
    }

    private char escaped() {
        at++;
        int place = at < text.length() ? "\"\\/bfnrtu".indexOf(text.charAt(at)) : -1;
        if (place < 0) {
            throw wrong();
        }
        if (place < 8) {
            return "\"\\/\b\f\n\r\t".charAt(place);
        }
        int code = 0;
        for (int i = 0; i < 4; i++) {
            at++;
            int digit = at < text.length() ? Character.digit(text.charAt(at), 16) : -1;
            if (digit < 0) {
                throw wrong();
            }
            code = code << 4 | digit;
        }
        return (char) code;
    }

    private Object number() {
        int from = at;
        while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String found = text.substring(from, at);
        if (!found.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")) {
            at = from;
            throw wrong();
        }
        try {
            return found.matches("-?[0-9]+") ? (Object) Long.valueOf(found) : Double.valueOf(found);
        } catch (NumberFormatException beyond64Bits) {
            return Double.valueOf(found);
        }
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw wrong();
        }
        at += word.length();
        return value;
    }

    private boolean taken(char c) {
        space();
        if (at < text.length() && text.charAt(at) == c) {
            at++;
            return true;
        }
        return false;
    }

    private void expect(char c) {
        if (!taken(c)) {
            throw wrong();
        }
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("not JSON at character " + at);
    }
}
