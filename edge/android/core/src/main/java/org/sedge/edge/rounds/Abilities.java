package org.sedge.edge.rounds;

import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Work;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/** What this device does of spec/extensions.md. */
public final class Abilities {
    /** As HELLO announces it. */
    public static final List<String> CODECS = Collections.unmodifiableList(
            Arrays.asList("int4", "sign", "freeze", "phases", "correction", "optimizer", "schedule", "average",
                    "blend", "loss"));

    private Abilities() {}

    /** The extensions that an order asks for and this device has not announced; empty: none. */
    static String lacking(Order order) {
        Work work = order.work;
        boolean selects = work.has(Work.SELECT) || order.has(Order.CONTEXT) || order.has(Order.PATCH_CONTEXT);
        boolean exchanges = work.has(Work.RETURNS) || work.has(Work.ARRAYS) && !work.has(Work.LOSS);
        String words = (exchanges ? ", arrays" : "") + (work.has(Work.CHOICE) ? ", choice" : "")
                + (work.has(Work.OWN_MODEL) ? ", own_model" : "") + (work.has(Work.REMEMBER) ? ", remember" : "")
                + (work.has(Work.SCORING) ? ", scoring" : "") + (selects ? ", select" : "")
                + (work.has(Work.SETTINGS) ? ", settings" : "");
        return words.isEmpty() ? "" : words.substring(2);
    }
}
