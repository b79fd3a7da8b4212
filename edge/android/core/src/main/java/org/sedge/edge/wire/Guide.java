package org.sedge.edge.wire;

import org.sedge.edge.wire.Schema.Field;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** Describes which inputs a bundle's guided loss takes besides outputs and targets (spec/extensions.md, X28). */
public final class Guide {
    static final Schema<Record> SCHEMA = Record.schema();
    private static final Field<Record, String> NAME = SCHEMA.required("name", Type.text(1, 256));
    private static final Field<Record, List<String>> MODELS = SCHEMA.optional("models",
            Type.list(Type.oneOf("start", "previous"), 0, 2), Collections.<String>emptyList());
    private static final Field<Record, Long> CONSTANTS = SCHEMA.optional("constants", Type.integer(0, 8192), 0L);
    private static final Field<Record, Boolean> COUNTS = SCHEMA.optional("counts", Type.BOOL, false);

    public final String name;
    /** The names of the reference models. */
    public final List<String> models;
    /** The number of constants that an order must supply. */
    public final int constants;
    /** Whether the loss takes the device's number of examples in each class. */
    public final boolean counts;

    Guide(Record guide) {
        name = guide.get(NAME);
        models = guide.get(MODELS);
        constants = guide.get(CONSTANTS).intValue();
        counts = guide.get(COUNTS);
    }

    /** Returns the inputs of the program "guided" that "gradient" does not have, in order. */
    public List<String> inputs() {
        List<String> inputs = new ArrayList<>(models);
        if (constants > 0) {
            inputs.add("constants");
        }
        if (counts) {
            inputs.add("counts");
        }
        return inputs;
    }
}
