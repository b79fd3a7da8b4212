package org.sedge.edge.rounds;

import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.jobs.Kept;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Schema.Field;

import java.util.Arrays;
import java.util.logging.Level;

/** Collects a job's inputs: the state kept from the run, and a checkpoint if there is one. */
final class Resuming {
    private Resuming() {}

    /** Returns the order's job. If the disk has lost some of its inputs, they are left out and the loss is logged. */
    static Job job(Order order, StateStore store, Blobs blobs, Effects effects, long httpBytes) {
        Kept found = store.keptFor(order);
        Kept kept = found == null ? Kept.SCHEMA.empty() : found;
        for (Field<Kept, byte[]> field : Arrays.asList(Kept.MODEL, Kept.RESIDUAL, Kept.MOMENTS, Kept.START)) {
            kept = kept.with(field, there(kept.get(field), field.key, order, blobs, effects));
        }
        byte[] checkpoint = there(store.checkpoint(order), "checkpoint", order, blobs, effects);
        return new Job(order, kept, checkpoint, httpBytes);
    }

    private static byte[] there(byte[] name, String what, Order order, Blobs blobs, Effects effects) {
        if (name == null || blobs.has(name)) {
            return name;
        }
        effects.note(Level.SEVERE, "run " + order.run + ": the device's own " + what
                + " is lost; continuing without it");
        return null;
    }
}
