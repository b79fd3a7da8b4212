package org.sedge.edge.jobs;

import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Type;

/** What the device keeps of one run: names of blobs. {@code BASE} is the global model of its last order. */
public final class Kept {
    public static final Schema SCHEMA = Schema.sparse();
    public static final Field<byte[]> BUNDLE = SCHEMA.required("bundle", Type.HASH);
    public static final Field<byte[]> BASE = SCHEMA.required("base", Type.HASH);
    /** The device's last trained model. */
    public static final Field<byte[]> MODEL = SCHEMA.optional("model", Type.orNil(Type.HASH), null);
    /** What its updates have left out so far. */
    public static final Field<byte[]> RESIDUAL = SCHEMA.optional("residual", Type.orNil(Type.HASH), null);
    /** The state of its optimizer. */
    public static final Field<byte[]> MOMENTS = SCHEMA.optional("moments", Type.orNil(Type.HASH), null);

    private Kept() {}
}
