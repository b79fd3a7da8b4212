package org.sedge.edge.wire;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The fields of a struct class, in the order in which they are encoded. */
public abstract class Schema<S extends Struct<S>> extends Type<S> {
    /** A field of the structs {@code S} with values of type {@code T}. */
    public static final class Field<S, T> {
        public final String key;
        final Type<T> type;
        /** The default value. For a required field, a placeholder until it is set. */
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

        /** Returns this field's value, given the values of all fields. */
        @SuppressWarnings("unchecked") // only values of the field's own type are stored there
        public T in(Object[] values) {
            return (T) values[place];
        }
    }

    final List<Field<S, ?>> fields = new ArrayList<>();
    /** Whether fields that have their default value are left out when encoding. */
    final boolean omits;

    public Schema(boolean omits) {
        this.omits = omits;
    }

    /** Creates a struct from the values of all fields. */
    protected abstract S make(Object[] values);

    /** Adds a required field. */
    public <T> Field<S, T> required(String key, Type<T> type) {
        return add(key, type, type.blank(), true);
    }

    /** Adds a field with a default. */
    public <T> Field<S, T> optional(String key, Type<T> type, T fallback) {
        return add(key, type, fallback, false);
    }

    private <T> Field<S, T> add(String key, Type<T> type, T fallback, boolean required) {
        Field<S, T> field = new Field<>(key, type, fallback, required, fields.size());
        fields.add(field);
        return field;
    }

    private Object[] defaults() {
        Object[] values = new Object[fields.size()];
        for (Field<S, ?> field : fields) {
            values[field.place] = field.fallback;
        }
        return values;
    }

    /** Returns a struct in which all fields have their defaults. Required fields must still be set. */
    public S empty() {
        return make(defaults());
    }

    /**
     * Decodes a struct from MessagePack.
     *
     * @throws IllegalArgumentException for anything else
     */
    public S decode(byte[] data) {
        return read(MsgPack.unpack(data, this));
    }

    @Override
    Type<?> part(String key) {
        for (Field<S, ?> field : fields) {
            if (field.key.equals(key)) {
                return field.type;
            }
        }
        return null;
    }

    @Override
    public S read(Object value) {
        Map<?, ?> given = asMap(value);
        Object[] values = defaults();
        for (Field<S, ?> field : fields) {
            if (given.containsKey(field.key)) {
                try {
                    values[field.place] = field.type.read(given.get(field.key));
                } catch (IllegalArgumentException error) {
                    throw new IllegalArgumentException(field.key + ": " + error.getMessage(), error);
                }
            } else if (field.required) {
                throw new IllegalArgumentException(field.key + ": missing");
            }
        }
        return make(values);
    }
}
