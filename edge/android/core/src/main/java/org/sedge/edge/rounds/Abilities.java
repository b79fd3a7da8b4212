package org.sedge.edge.rounds;

import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Messages.Work;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/** The extensions defined in spec/extensions.md that this device supports. */
public final class Abilities {
    /** The names of the extensions that the device announces in HELLO. */
    public static final List<String> CODECS = Collections.unmodifiableList(
            Arrays.asList("int4", "sign", "freeze", "phases", "correction", "optimizer", "schedule", "average",
                    "blend", "loss"));

    private Abilities() {}

    /**
     * Returns the names of the extensions that an order uses but this device does not support, or "" if there are none.
     */
    static String lacking(Order order) {
        Set<String> words = words(order);
        words.removeAll(CODECS);
        return String.join(", ", words);
    }

    /**
     * Returns the names of the extensions that an order uses, in alphabetical order. It omits {@code frozen}, because
     * that extension is used by the order's bundle, not by the order itself.
     */
    static Set<String> words(Order order) {
        Work work = order.work;
        Set<String> found = new TreeSet<>();
        add(found, "select", work.has(Work.SELECT) || order.has(Order.CONTEXT) || order.has(Order.PATCH_CONTEXT));
        add(found, "arrays", work.has(Work.RETURNS) || work.has(Work.ARRAYS) && !work.has(Work.LOSS));
        add(found, "choice", work.has(Work.CHOICE));
        add(found, "own_model", work.has(Work.OWN_MODEL));
        add(found, "remember", work.has(Work.REMEMBER));
        add(found, "scoring", work.has(Work.SCORING));
        add(found, "settings", work.has(Work.SETTINGS));
        add(found, "phases", work.has(Work.THEN));
        add(found, "blend", work.has(Work.BLEND));
        add(found, "loss", work.has(Work.LOSS));
        add(found, "correction", order.has(Order.CORRECTION));
        String values = order.codec.values;
        add(found, values, values.equals("int4") || values.equals("sign"));
        List<Training> trainings = new ArrayList<>(work.then);
        if (work.training != null) {
            trainings.add(work.training);
        }
        if (work.ownModel != null) {
            trainings.add(work.ownModel.training);
        }
        for (Training training : trainings) {
            add(found, "freeze", training.has(Training.FREEZE));
            add(found, "schedule", training.has(Training.WARMUP_STEPS) || training.has(Training.END_FACTOR));
            add(found, "average", training.has(Training.AVERAGE));
            add(found, "optimizer", training.has(Training.OPTIMIZER) || training.has(Training.NESTEROV)
                    || training.has(Training.WEIGHT_DECAY) || training.has(Training.CLIP_NORM)
                    || training.has(Training.OPTIMIZER_STATE));
        }
        return found;
    }

    private static void add(Set<String> words, String word, boolean uses) {
        if (uses) {
            words.add(word);
        }
    }
}
