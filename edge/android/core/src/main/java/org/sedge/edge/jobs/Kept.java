// Written by `make spec` from the Python code: changes here are lost.
package org.sedge.edge.jobs;

import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Struct;
import org.sedge.edge.wire.Type;

/** The hashes of the blobs that the device keeps for one run. */
public final class Kept extends Struct<Kept> {
    public static final Schema<Kept> SCHEMA = new Schema<Kept>(true) {
        @Override
        protected Kept make(Object[] given) {
            return new Kept(given);
        }
    };
    public static final Field<Kept, byte[]> BUNDLE = SCHEMA.required("bundle", Type.HASH);
    public static final Field<Kept, byte[]> BASE = SCHEMA.required("base", Type.HASH);
    public static final Field<Kept, byte[]> MODEL = SCHEMA.optional("model", Type.orNil(Type.HASH), null);
    public static final Field<Kept, byte[]> RESIDUAL = SCHEMA.optional("residual", Type.orNil(Type.HASH), null);
    public static final Field<Kept, byte[]> MOMENTS = SCHEMA.optional("moments", Type.orNil(Type.HASH), null);
    public static final Field<Kept, byte[]> START = SCHEMA.optional("start", Type.orNil(Type.HASH), null);
    public static final Field<Kept, byte[]> ORIGIN = SCHEMA.optional("origin", Type.orNil(Type.HASH), null);
    public static final Field<Kept, byte[]> LAYOUT = SCHEMA.optional("layout", Type.orNil(Type.HASH), null);

    /** The bundle. */
    public final byte[] bundle;
    /** The global model of the run's last order. */
    public final byte[] base;
    /** The device's last trained model. */
    public final byte[] model;
    /** Everything that the device's updates have left out so far. */
    public final byte[] residual;
    /** The state of the device's optimizer. */
    public final byte[] moments;
    /** The model to predict with before the first training, if class shares improve the global model. */
    public final byte[] start;
    /** The first version of the bundle. */
    public final byte[] origin;
    /** The hash of the bundle's layout. */
    public final byte[] layout;

    private Kept(Object[] given) {
        super(SCHEMA, given);
        bundle = BUNDLE.in(given);
        base = BASE.in(given);
        model = MODEL.in(given);
        residual = RESIDUAL.in(given);
        moments = MOMENTS.in(given);
        start = START.in(given);
        origin = ORIGIN.in(given);
        layout = LAYOUT.in(given);
    }
}
