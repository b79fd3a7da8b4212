package org.sedge.edge.wire;

import org.sedge.edge.wire.Schema.Field;

import java.util.Locale;

/** The number that people read of a model, by name. */
public final class Metric implements MsgPack.Packed {
    private static final Schema SCHEMA = Schema.sparse();
    private static final Field<String> NAME = SCHEMA.required("name", Type.text(1, 64));
    private static final Field<Boolean> SHARE = SCHEMA.optional("share", Type.BOOL, false);

    static {
        SCHEMA.optional("better", Type.oneOf("higher", "lower"), "higher");
    }

    /** That of a bundle which names none. */
    public static final Metric ACCURACY = new Metric("accuracy", true);
    public static final Type<Metric> TYPE = new Type<Metric>() {
        @Override
        public Metric read(Object value) {
            return new Metric(SCHEMA.read(value));
        }

        @Override
        Type<?> part(String key) {
            return SCHEMA.part(key);
        }
    };

    /** Such as {@code mean_absolute_error}. */
    public final String name;
    /** Whether it lies in [0, 1] and is shown in per cent. */
    public final boolean share;
    private final Struct packed;

    public Metric(String name, boolean share) {
        this(SCHEMA.empty().with(NAME, name).with(SHARE, share));
    }

    private Metric(Struct packed) {
        this.packed = packed;
        name = packed.get(NAME);
        share = packed.get(SHARE);
    }

    /** A value with the name, as people read it: {@code accuracy 81.3 %}, {@code mean absolute error 0.0421}. */
    public String said(double value) {
        return name.replace('_', ' ') + " "
                + (share ? String.format(Locale.ROOT, "%.1f %%", 100 * value) : String.format(Locale.ROOT, "%.3g", value));
    }

    @Override
    public Struct packed() {
        return packed;
    }
}
