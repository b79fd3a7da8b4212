package org.sedge.edge.wire;

import org.sedge.edge.wire.Schema.Field;

import java.util.Arrays;

/** An immutable value of a schema. Two are equal where their bytes are. */
public final class Struct implements MsgPack.Packed {
    final Schema schema;
    final Object[] values;

    Struct(Schema schema, Object[] values) {
        this.schema = schema;
        this.values = values;
    }

    /** The value of a field of this struct's schema. */
    @SuppressWarnings("unchecked") // values are put in by the field's own type
    public <T> T get(Field<T> field) {
        if (schema.fields.get(field.place) != field) {
            throw new IllegalArgumentException(field.key + " is a field of another schema");
        }
        return (T) values[field.place];
    }

    /** This struct with another value in one field. */
    public <T> Struct with(Field<T> field, T value) {
        get(field);
        Object[] changed = values.clone();
        changed[field.place] = value;
        return new Struct(schema, changed);
    }

    /** Whether a field has another value than its default. */
    public boolean has(Field<?> field) {
        return !same(values[field.place], field.fallback);
    }

    /** MessagePack's bytes. */
    public byte[] encode() {
        return MsgPack.pack(this);
    }

    @Override
    public Struct packed() {
        return this;
    }

    void write(MsgPack.Writer writer) {
        boolean[] written = new boolean[values.length];
        int count = 0;
        for (Field<?> field : schema.fields) {
            written[field.place] = !schema.omits || field.required || has(field);
            count += written[field.place] ? 1 : 0;
        }
        writer.map(count);
        for (Field<?> field : schema.fields) {
            if (written[field.place]) {
                writer.value(field.key);
                writer.value(values[field.place]);
            }
        }
    }

    private static boolean same(Object a, Object b) {
        return a == b || (a != null && b != null && Arrays.equals(MsgPack.pack(a), MsgPack.pack(b)));
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Struct && schema == ((Struct) other).schema && same(this, other);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(encode());
    }
}
