package org.sedge.edge.wire;

import java.util.List;
import java.util.Map;

/** Values of parsed JSON, of the type that is expected; otherwise {@code IllegalArgumentException} names the key. */
final class Checked {
    private Checked() {}

    static Map<?, ?> map(Object value, String what) {
        return of(Map.class, value, what);
    }

    static Map<?, ?> map(Map<?, ?> found, String key) {
        return of(Map.class, found.get(key), key);
    }

    static List<?> list(Map<?, ?> found, String key) {
        return of(List.class, found.get(key), key);
    }

    static String text(Map<?, ?> found, String key) {
        return of(String.class, found.get(key), key);
    }

    static boolean bool(Map<?, ?> found, String key) {
        return of(Boolean.class, found.get(key), key);
    }

    static long integer(Map<?, ?> found, String key) {
        return of(Long.class, found.get(key), key);
    }

    private static <T> T of(Class<T> type, Object value, String key) {
        if (!type.isInstance(value)) {
            throw new IllegalArgumentException(key + ": missing, or no " + type.getSimpleName());
        }
        return type.cast(value);
    }
}
