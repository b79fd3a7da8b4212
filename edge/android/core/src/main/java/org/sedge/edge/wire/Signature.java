package org.sedge.edge.wire;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * The name of a program and the names of its inputs and outputs, in order. It corresponds to the protocol's
 * wire/programs.py.
 */
public final class Signature {
    private static final List<String> BATCH = Arrays.asList("theta", "x", "y", "w");
    public static final Signature EVALUATE =
            new Signature("evaluate", BATCH, Arrays.asList("loss_sum", "metric_sum", "weight_sum"));
    public static final Signature PREDICT =
            new Signature("predict", Arrays.asList("theta", "x"), Collections.singletonList("logits"));

    public final String program;
    public final List<String> inputs;
    public final List<String> outputs;

    private Signature(String program, List<String> inputs, List<String> outputs) {
        this.program = program;
        this.inputs = inputs;
        this.outputs = outputs;
    }

    /**
     * Returns the signature of "gradient".
     *
     * @param statistics whether the layout has statistics
     * @param noise whether the model uses random numbers
     */
    public static Signature gradient(boolean statistics, boolean noise) {
        return training("gradient", statistics, noise, Collections.<String>emptyList());
    }

    /** Returns the signature of "guided", which also takes the guide's inputs. */
    public static Signature guided(boolean statistics, boolean noise, Guide guide) {
        return training("guided", statistics, noise, guide.inputs());
    }

    private static Signature training(String program, boolean statistics, boolean noise, List<String> more) {
        List<String> inputs = new ArrayList<>(BATCH);
        List<String> outputs = new ArrayList<>(Arrays.asList("gradient", "loss"));
        if (noise) {
            inputs.add("noise");
        }
        inputs.addAll(more);
        if (statistics) {
            outputs.add("statistics");
        }
        return new Signature(program, inputs, outputs);
    }
}
