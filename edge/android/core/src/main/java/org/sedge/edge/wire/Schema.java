package org.sedge.edge.wire;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The fields of a class of structs, in the order in which they are written. */
public abstract class Schema<S extends Struct<S>> extends Type<S> {
    /** One field of the structs {@code S}. {@code T} is the type of its value. */
    public static final class Field<S, T> {
        public final String key;
        final Type<T> type;
        /** The value of a struct that lacks it; of a required field one that says nothing. */
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

        /** The field's value among those of a struct. */
        @SuppressWarnings("unchecked") // values are put in by the field's own type
        public T in(Object[] values) {
            return (T) values[place];
        }
    }

    final List<Field<S, ?>> fields = new ArrayList<>();
    /** Whether a field with its default is left out. */
    final boolean omits;

    public Schema(boolean omits) {
        this.omits = omits;
    }

    /** The struct of these values, one for each field. */
    protected abstract S make(Object[] values);

    /** Adds a field that must be there. */
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

    /** A struct with the defaults; required fields are still to be set. */
    public S empty() {
        return make(defaults());
    }

    /** The struct in MessagePack's bytes. Throws {@code IllegalArgumentException} for anything else. */
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
