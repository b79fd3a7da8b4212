package org.sedge.edge.wire;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * The type of a field.
 *
 * <p>The core has no lambdas, because Android's own runtime does not support them and Debian's dexer rejects them.
 */
public abstract class Type<T> {
    private static final Pattern ID_PATTERN = Pattern.compile("[a-z0-9][a-z0-9-]{0,47}");

    public static final Type<String> ID = new Type<String>() {
        @Override
        public String read(Object value) {
            if (!(value instanceof String) || !ID_PATTERN.matcher((String) value).matches()) {
                throw wrong(value, "an id");
            }
            return (String) value;
        }
    };
    public static final Type<Boolean> BOOL = new Type<Boolean>() {
        @Override
        public Boolean read(Object value) {
            if (!(value instanceof Boolean)) {
                throw wrong(value, "a bool");
            }
            return (Boolean) value;
        }

        @Override
        Boolean blank() {
            return false;
        }
    };
    public static final Type<byte[]> HASH = bytes(32, 32);
    public static final Type<byte[]> NONCE = bytes(16, 16);
    public static final Type<Double> FINITE = number(-Double.MAX_VALUE, false, Double.MAX_VALUE);
    public static final Type<Long> COUNT = integer(0, 1L << 40);
    public static final Type<Long> ROUND = integer(1, 1L << 31);

    /**
     * Converts a decoded MessagePack value.
     *
     * @throws IllegalArgumentException if it does not have this type; the message says what is wrong
     */
    public abstract T read(Object value);

    /**
     * Returns the type of a list's items, or of the value under a key of a map. Returns null if such values are
     * dropped. The values of unknown keys are dropped, because they may have any size.
     */
    Type<?> part(String key) {
        return null;
    }

    /** Returns the value of a field that has not been set. */
    T blank() {
        return null;
    }

    /** Returns the maximum number of entries in a map. Larger maps are refused before memory is allocated for them. */
    int most() {
        return Integer.MAX_VALUE;
    }

    /** Returns a type for bytes whose length is within these limits. */
    public static Type<byte[]> bytes(final int least, final int most) {
        return new Type<byte[]>() {
            @Override
            public byte[] read(Object value) {
                int length = value instanceof byte[] ? ((byte[]) value).length : -1;
                if (length < least || length > most) {
                    throw wrong(value, least + " to " + most + " bytes");
                }
                return (byte[]) value;
            }
        };
    }

    /** Accepts any value, unchanged. */
    static final Type<Object> ANY = new Type<Object>() {
        @Override
        public Object read(Object value) {
            return value;
        }

        @Override
        Type<?> part(String key) {
            return this;
        }
    };
    /** Bytes that JSON represents as base64. */
    static final Type<byte[]> BASE64 = new Type<byte[]>() {
        @Override
        public byte[] read(Object value) {
            if (!(value instanceof String)) {
                throw wrong(value, "base64");
            }
            return Base64.getDecoder().decode((String) value);
        }
    };

    /** Returns a type for text whose number of code points is within these limits. */
    public static Type<String> text(final int least, final int most) {
        return new Type<String>() {
            @Override
            public String read(Object value) {
                String text = value instanceof String ? (String) value : null;
                int length = text == null ? -1 : text.codePointCount(0, text.length());
                if (length < least || length > most) {
                    throw wrong(value, "text of " + least + " to " + most + " characters");
                }
                return text;
            }
        };
    }

    /** Returns a type for integers within these limits. */
    public static Type<Long> integer(final long least, final long most) {
        return new Type<Long>() {
            @Override
            public Long read(Object value) {
                if (!(value instanceof Long) || (Long) value < least || (Long) value > most) {
                    throw wrong(value, "an integer from " + least + " to " + most);
                }
                return (Long) value;
            }

            @Override
            Long blank() {
                return 0L;
            }
        };
    }

    /**
     * Returns a type for finite numbers from {@code least} to {@code most}. If {@code open} is true, {@code least}
     * itself is excluded.
     */
    public static Type<Double> number(final double least, final boolean open, final double most) {
        return new Type<Double>() {
            @Override
            public Double read(Object value) {
                boolean known = value instanceof Double || value instanceof Long;
                double found = known ? ((Number) value).doubleValue() : Double.NaN;
                if (!(found >= least && found <= most) || (open && found == least)) {
                    throw wrong(value, "a number " + (open ? "above " : "from ") + least + " to " + most);
                }
                return found;
            }

            @Override
            Double blank() {
                return 0.0;
            }
        };
    }

    /** Returns a type that tries these types in turn and uses the first that can read a value. */
    public static Type<Object> either(final Type<?>... types) {
        return new Type<Object>() {
            @Override
            public Object read(Object value) {
                for (Type<?> type : types) {
                    try {
                        return type.read(value);
                    } catch (IllegalArgumentException error) {
                        continue;
                    }
                }
                throw wrong(value, "a value of another type");
            }
        };
    }

    /** Returns a type that accepts only these words. */
    public static Type<String> oneOf(final String... words) {
        return new Type<String>() {
            @Override
            public String read(Object value) {
                if (!Arrays.asList(words).contains(value)) {
                    throw wrong(value, "one of " + Arrays.toString(words));
                }
                return (String) value;
            }
        };
    }

    /** Returns a type for lists of {@code least} to {@code most} items. */
    public static <T> Type<List<T>> list(final Type<T> item, final int least, final int most) {
        return new Type<List<T>>() {
            @Override
            public List<T> read(Object value) {
                int size = value instanceof List ? ((List<?>) value).size() : -1;
                if (size < least || size > most) {
                    throw wrong(value, "a list of " + least + " to " + most);
                }
                List<T> found = new ArrayList<>(size);
                for (Object one : (List<?>) value) {
                    found.add(item.read(one));
                }
                return Collections.unmodifiableList(found);
            }

            @Override
            Type<?> part(String key) {
                return item;
            }
        };
    }

    /** Returns a type for maps with text keys and at most {@code most} entries. */
    public static <T> Type<Map<String, T>> map(final Type<T> item, final int most) {
        return new Type<Map<String, T>>() {
            @Override
            public Map<String, T> read(Object value) {
                Map<String, T> found = new LinkedHashMap<>();
                for (Map.Entry<?, ?> entry : asMap(value).entrySet()) {
                    found.put((String) entry.getKey(), item.read(entry.getValue()));
                }
                return Collections.unmodifiableMap(found);
            }

            @Override
            int most() {
                return most;
            }

            @Override
            Type<?> part(String key) {
                return item;
            }
        };
    }

    /** Returns a type that accepts nil in addition to the given type. */
    public static <T> Type<T> orNil(final Type<T> type) {
        return new Type<T>() {
            @Override
            public T read(Object value) {
                return value == null ? null : type.read(value);
            }

            @Override
            Type<?> part(String key) {
                return type.part(key);
            }
        };
    }

    static Map<?, ?> asMap(Object value) {
        if (!(value instanceof Map)) {
            throw wrong(value, "a map");
        }
        return (Map<?, ?>) value;
    }

    /**
     * Characters that end a line or are invisible. They are not shown, because the text comes from a peer and the error
     * is logged.
     */
    private static final String NOT_SHOWN = "[\\p{C}\\p{Zl}\\p{Zp}]";

    private static IllegalArgumentException wrong(Object value, String expected) {
        boolean plain = value == null || value instanceof Number || value instanceof Boolean;
        String found = plain ? String.valueOf(value) : value instanceof String && ((String) value).length() < 80
                ? "'" + ((String) value).replaceAll(NOT_SHOWN, "?") + "'" : "a " + value.getClass().getSimpleName();
        return new IllegalArgumentException("found " + found + ", expected " + expected);
    }
}
