package org.sedge.edge.rounds;

import org.sedge.edge.AgentListener;
import org.sedge.edge.SedgeException.BodyError;
import org.sedge.edge.SedgeException.TooManyOrders;
import org.sedge.edge.SedgeException.TooManyStarts;
import org.sedge.edge.SedgeException;
import org.sedge.edge.jobs.GlobalModel;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Messages.Decline;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.OrderName;
import org.sedge.edge.wire.Peer;
import org.sedge.edge.wire.Refusals;

import java.util.logging.Level;

/** Tells the coordinator, and the device's owner, what the device cannot do. */
final class Declines {
    private static final int MAX_DETAIL = 1000;

    private final Peer peer;
    private final Effects effects;
    private final AgentListener listener;

    Declines(Peer peer, Effects effects, AgentListener listener) {
        this.peer = peer;
        this.effects = effects;
        this.listener = listener;
    }

    void send(String run, long round, SedgeException error) {
        String detail = cut(String.valueOf(error.getMessage()));
        effects.send(peer.topic, peer.seal(Kind.DECLINE, Decline.SCHEMA.empty().with(Decline.RUN, run)
                .with(Decline.ROUND, round).with(Decline.REASON, error.reason()).with(Decline.DETAIL, detail), null));
        listener.declined(run, (int) round, error.reason() + ": " + detail);
    }

    /** The order cannot be done: says so to the coordinator and in the log. */
    void send(Order order, SedgeException error) {
        effects.note(Level.SEVERE, GlobalModel.where(order) + ": " + error.getMessage());
        send(order.run, order.round, error);
    }

    /** Declines an order beyond the device's own limits; drops it without {@code why}; {@code tells}: logs it. */
    void beyondLimits(Order order, String why, boolean tells) {
        if (tells) {
            effects.note(Level.WARNING, GlobalModel.where(order) + ": "
                    + (why.isEmpty() ? "orders arrive faster than rounds can end; the excess is dropped" : why));
        }
        if (!why.isEmpty()) {
            send(order.run, order.round, new TooManyOrders(why));
        }
    }

    /** Declines an order that keeps killing the agent, so that the other runs can go on. */
    void exhausted(Order order) {
        SedgeException error =
                new TooManyStarts(Refusals.tooManyStarts(GlobalModel.where(order), StateStore.MAX_STARTS));
        effects.note(Level.SEVERE, error.getMessage());
        send(order.run, order.round, error);
    }

    /** The beginning of a text, as much as a message's detail takes. */
    static String cut(String text) {
        int length = Math.min(MAX_DETAIL, text.codePointCount(0, text.length()));
        return text.substring(0, text.offsetByCodePoints(0, length));
    }

    /** Declines an order with a value that is not known; dropped in silence it would come again for ever. */
    void unreadable(BodyError error) {
        try {
            OrderName name = OrderName.SCHEMA.decode(error.order());
            send(name.run, name.round, error);
        } catch (IllegalArgumentException unnamed) { // or no order
            effects.note(Level.INFO, "a message that cannot be answered");
        }
    }
}
