package org.sedge.edge.wire;

/** A struct whose fields only the file knows that declares them, and which has no class of its own. */
public final class Record extends Struct<Record> {
    private Record(Schema<Record> schema, Object[] values) {
        super(schema, values);
    }

    /** A schema without fields; all that it will have are written. */
    public static Schema<Record> schema() {
        return new Schema<Record>(false) {
            @Override
            protected Record make(Object[] values) {
                return new Record(this, values);
            }
        };
    }
}
