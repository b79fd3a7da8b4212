package org.sedge.edge.wire;

import org.sedge.edge.wire.Schema.Field;

import java.util.Arrays;

/**
 * An immutable record. Its class has a schema, which lists its fields. Two records are equal if their encoded bytes
 * are.
 */
public abstract class Struct<S extends Struct<S>> {
    private final Schema<S> schema;
    private final Object[] values;

    protected Struct(Schema<S> schema, Object[] values) {
        this.schema = schema;
        this.values = values;
    }

    /** Returns the value of a field. */
    public <T> T get(Field<S, T> field) {
        return field.in(values);
    }

    /** Returns a copy of this struct in which one field has this value. */
    public <T> S with(Field<S, T> field, T value) {
        Object[] changed = values.clone();
        changed[field.place] = value;
        return schema.make(changed);
    }

    /** Returns true if a field's value differs from its default. */
    public boolean has(Field<S, ?> field) {
        return !same(values[field.place], field.fallback);
    }

    /** Encodes the struct in MessagePack. */
    public byte[] encode() {
        return MsgPack.pack(this);
    }

    void write(MsgPack.Writer writer) {
        boolean[] written = new boolean[values.length];
        int count = 0;
        for (Field<S, ?> field : schema.fields) {
            written[field.place] = !schema.omits || field.required || has(field);
            count += written[field.place] ? 1 : 0;
        }
        writer.map(count);
        for (Field<S, ?> field : schema.fields) {
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
        return other instanceof Struct && schema == ((Struct<?>) other).schema && same(this, other);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(encode());
    }
}
