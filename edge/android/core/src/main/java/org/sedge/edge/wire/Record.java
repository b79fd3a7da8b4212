package org.sedge.edge.wire;

/** A struct without a class of its own. Only the file that declares its fields uses them. */
public final class Record extends Struct<Record> {
    private Record(Schema<Record> schema, Object[] values) {
        super(schema, values);
    }

    /** Returns a schema without fields. Fields added to it are always encoded, even if they have their default. */
    public static Schema<Record> schema() {
        return new Schema<Record>(false) {
            @Override
            protected Record make(Object[] values) {
                return new Record(this, values);
            }
        };
    }
}
