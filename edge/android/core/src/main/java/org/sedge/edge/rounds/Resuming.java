package org.sedge.edge.rounds;

import org.sedge.edge.rounds.State.Run;
import org.sedge.edge.training.Job;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Struct;

import java.util.logging.Level;

/** What a job starts from besides its order: what the device has kept of the run, and a checkpoint. */
final class Resuming {
    private Resuming() {}

    /** The order's job, without what the disk has lost, of which there is a note. */
    static Job job(Struct order, StateStore store, Blobs blobs, Effects effects) {
        Struct kept = store.keptFor(order);
        byte[] model = kept == null ? null : kept.get(Run.MODEL);
        byte[] residual = kept == null ? null : kept.get(Run.RESIDUAL);
        byte[][] names = {model, residual, store.checkpoint(order)};
        for (int i = 0; i < names.length; i++) {
            if (names[i] != null && !blobs.has(names[i])) {
                names[i] = null;
                effects.note(Level.SEVERE, "run " + order.get(Order.RUN) + ": the device's own "
                        + new String[] {"model", "residual", "checkpoint"}[i] + " is lost; going on without it");
            }
        }
        return new Job(order, names[0], names[1], names[2]);
    }
}
