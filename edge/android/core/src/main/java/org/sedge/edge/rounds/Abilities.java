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
            Arrays.asList("int4", "sign", "freeze", "phases", "correction", "optimizer", "schedule", "average"));

    private Abilities() {}

    /** The extension that an order asks for and this device has not announced; null: none. */
    static String lacking(Order order) {
        Work work = order.work;
        return work.has(Work.OWN_MODEL) ? "own_model" : work.has(Work.SELECT) || order.has(Order.CONTEXT) ? "select"
                : work.has(Work.SCORING) ? "scoring" : work.has(Work.CHOICE) ? "choice"
                : work.has(Work.REMEMBER) ? "remember" : order.has(Order.PATCH_CONTEXT) ? "patch_context" : null;
    }
}
