package org.sedge.edge.wire;

import org.sedge.edge.wire.Schema.Field;

import java.util.Locale;

/** The name and kind of the metric by which people judge a model. */
public final class Metric extends Struct<Metric> {
    public static final Schema<Metric> SCHEMA = new Schema<Metric>(true) {
        @Override
        protected Metric make(Object[] values) {
            return new Metric(values);
        }
    };
    private static final Field<Metric, String> NAME = SCHEMA.required("name", Type.text(1, 64));
    private static final Field<Metric, Boolean> SHARE = SCHEMA.optional("share", Type.BOOL, false);

    private static final Field<Metric, String> BETTER =
            SCHEMA.optional("better", Type.oneOf("higher", "lower"), "higher");

    /** The metric of a bundle that does not name one. */
    public static final Metric ACCURACY = new Metric("accuracy", true);

    /** The metric's name, for example {@code mean_absolute_error}. */
    public final String name;
    /** Whether values are in [0, 1] and shown as percentages. */
    public final boolean share;

    public Metric(String name, boolean share) {
        this(new Object[] {name, share, "higher"});
    }

    private Metric(Object[] values) {
        super(SCHEMA, values);
        name = NAME.in(values);
        share = SHARE.in(values);
    }

    /** Returns true if a value is better than another. */
    public boolean isBetter(double value, double other) {
        return get(BETTER).equals("higher") ? value > other : value < other;
    }

    /** Returns the value to report if the mean over the rows is {@code mean}. */
    public double reported(double mean) {
        return name.equals("perplexity") ? Math.exp(mean) : mean;
    }

    /**
     * Formats a value with the metric's name, such as {@code accuracy 81.3 %} or {@code mean absolute error 0.0421}.
     */
    public String said(double value) {
        return name.replace('_', ' ') + " "
                + (share ? String.format(Locale.ROOT, "%.1f %%", 100 * value) : String.format(Locale.ROOT, "%.3g", value));
    }
}
