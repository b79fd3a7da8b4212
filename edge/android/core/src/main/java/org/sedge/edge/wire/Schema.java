package org.sedge.edge.wire;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The fields of a kind of struct, in the order in which they are written. */
public final class Schema extends Type<Struct> {
    /** One field. {@code T} is the type of its value. */
    public static final class Field<T> {
        public final String key;
        final Type<T> type;
        final T fallback;
        final boolean required;
        final int place;

        Field(String key, Type<T> type, T fallback, boolean required, int place) {
            this.key = key;
            this.type = type;
            this.fallback = fallback;
            this.required = required;
            this.place = place;
        }
    }

    final List<Field<?>> fields = new ArrayList<>();
    /** Whether a field with its default is left out. */
    final boolean omits;

    private Schema(boolean omits) {
        this.omits = omits;
    }

    /** A schema whose fields are all written. */
    public static Schema whole() {
        return new Schema(false);
    }

    /** A schema whose fields are left out where they have their default. */
    public static Schema sparse() {
        return new Schema(true);
    }

    /** Adds a field that must be there. */
    public <T> Field<T> required(String key, Type<T> type) {
        return add(key, type, null, true);
    }

    /** Adds a field with a default. */
    public <T> Field<T> optional(String key, Type<T> type, T fallback) {
        return add(key, type, fallback, false);
    }

    private <T> Field<T> add(String key, Type<T> type, T fallback, boolean required) {
        Field<T> field = new Field<>(key, type, fallback, required, fields.size());
        fields.add(field);
        return field;
    }

    /** A struct with the defaults; required fields are still missing. */
    public Struct empty() {
        Object[] values = new Object[fields.size()];
        for (Field<?> field : fields) {
            values[field.place] = field.fallback;
        }
        return new Struct(this, values);
    }

    /** The struct in MessagePack's bytes. Throws {@code IllegalArgumentException} for anything else. */
    public Struct decode(byte[] data) {
        return read(MsgPack.unpack(data, this));
    }

    @Override
    Type<?> part(String key) {
        for (Field<?> field : fields) {
            if (field.key.equals(key)) {
                return field.type;
            }
        }
        return null;
    }

    @Override
    public Struct read(Object value) {
        Map<?, ?> found = asMap(value);
        Struct struct = empty();
        for (Field<?> field : fields) {
            if (found.containsKey(field.key)) {
                try {
                    struct.values[field.place] = field.type.read(found.get(field.key));
                } catch (IllegalArgumentException error) {
                    throw new IllegalArgumentException(field.key + ": " + error.getMessage(), error);
                }
            } else if (field.required) {
                throw new IllegalArgumentException(field.key + ": missing");
            }
        }
        return struct;
    }
}
