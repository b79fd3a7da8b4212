package org.sedge.edge.wire;

/** A struct without a class of its own, whose fields are known only to the file that declares them. */
public final class Record extends Struct<Record> {
    private Record(Schema<Record> schema, Object[] values) {
        super(schema, values);
    }

    /** A schema without fields; every field added later is always written. */
    public static Schema<Record> schema() {
        return new Schema<Record>(false) {
            @Override
            protected Record make(Object[] values) {
                return new Record(this, values);
            }
        };
    }
}
