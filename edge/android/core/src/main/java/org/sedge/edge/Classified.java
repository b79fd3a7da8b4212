package org.sedge.edge;

import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.wire.Bundle;

import java.util.Collections;
import java.util.List;

/**
 * A classifier's results for N inputs and C classes. There is one result for each input or, if the model labels pixels
 * or tokens, one for each of these.
 */
public final class Classified {
    private final Rows outputs;
    private final Rows classes;
    private final Rows probabilities;
    private final List<String> labels;

    /** @param outputs (N, C, ...), or (N, ..., C) if the bundle's labels are (N, ...) */
    Classified(Rows outputs, Bundle bundle) throws SedgeException {
        long[] shape = outputs.shape();
        if (shape.length == 0) {
            throw new DataError("the model outputs a single number, expected (C, ...)");
        }
        boolean first = bundle.classesFirst(shape);
        int count = (int) shape[first ? 0 : shape.length - 1];
        int places = outputs.rowSize / count;
        float[] powers = new float[outputs.size()];
        long[] best = new long[outputs.count * places];
        for (int row = 0; row < outputs.count; row++) {
            for (int place = 0; place < places; place++) {
                int from = row * outputs.rowSize + place * (first ? 1 : count);
                best[row * places + place] = softmax(outputs, powers, from, count, first ? places : 1);
            }
        }
        long[] rest = new long[shape.length - 1];
        System.arraycopy(shape, first ? 1 : 0, rest, 0, rest.length);
        this.outputs = outputs;
        labels = Collections.unmodifiableList(bundle.labels);
        classes = new Rows(best, rest);
        probabilities = new Rows(powers, shape);
    }

    /**
     * Computes the probabilities of one pixel, token or whole input. Returns its class, like numpy's argmax: the index
     * of the first largest value, or of the first NaN.
     */
    private static int softmax(Rows outputs, float[] powers, int from, int count, int step) {
        int best = 0;
        for (int c = 1; c < count; c++) {
            float value = outputs.floatAt(from + c * step);
            float most = outputs.floatAt(from + best * step);
            best = value > most || Float.isNaN(value) && !Float.isNaN(most) ? c : best;
        }
        float most = outputs.floatAt(from + best * step);
        float sum = 0;
        for (int c = 0; c < count; c++) {
            powers[from + c * step] = (float) Math.exp(outputs.floatAt(from + c * step) - most);
            sum += powers[from + c * step];
        }
        for (int c = 0; c < count; c++) {
            powers[from + c * step] /= sum;
        }
        return best;
    }

    /** Returns the model's outputs (logits), shape (N, C, ...) or (N, ..., C). */
    public Rows outputs() {
        return outputs;
    }

    /** Returns the most likely classes, shape (N, ...). */
    public Rows classes() {
        return classes;
    }

    /** Returns the probability of each class, in the same shape as the outputs. */
    public Rows probabilities() {
        return probabilities;
    }

    /** Returns the names of the classes, or an empty list if the bundle does not name them. */
    public List<String> labels() {
        return labels;
    }
}
