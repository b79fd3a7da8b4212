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
import java.util.regex.Pattern;

/** Tells the coordinator and the device's owner about orders that the device cannot carry out. */
final class Declines {
    private static final int MAX_DETAIL = 1000;
    /** Matches the folders in an absolute path, but not those in a URL. */
    private static final Pattern FOLDERS = Pattern.compile("(?<![A-Za-z0-9_:/.\\]])/(?:[^\\s/'\"]+/)+(?=[^\\s/'\",;:)])");

    private final Peer peer;
    private final Effects effects;
    private final AgentListener listener;

    Declines(Peer peer, Effects effects, AgentListener listener) {
        this.peer = peer;
        this.effects = effects;
        this.listener = listener;
    }

    void send(String run, long round, SedgeException error) {
        String detail = detail(String.valueOf(error.getMessage()));
        effects.send(peer.topic, peer.seal(Kind.DECLINE, Decline.SCHEMA.empty().with(Decline.RUN, run)
                .with(Decline.ROUND, round).with(Decline.REASON, error.reason()).with(Decline.DETAIL, detail), null));
        listener.declined(run, (int) round, error.reason() + ": " + detail);
    }

    /** Declines an order that cannot be carried out, and logs the error. */
    void send(Order order, SedgeException error) {
        effects.note(Level.SEVERE, GlobalModel.where(order) + ": " + error.getMessage());
        send(order.run, order.round, error);
    }

    /**
     * Declines an order that exceeds the device's own limits, or drops it if {@code why} is empty. Logs a warning if
     * {@code tells} is true.
     */
    void beyondLimits(Order order, String why, boolean tells) {
        if (tells) {
            effects.note(Level.WARNING, GlobalModel.where(order) + ": "
                    + (why.isEmpty() ? "orders arrive faster than rounds can end; dropping the excess" : why));
        }
        if (!why.isEmpty()) {
            send(order.run, order.round, new TooManyOrders(why));
        }
    }

    /** Declines an order that repeatedly crashes the agent, so that other runs can continue. */
    void exhausted(Order order) {
        SedgeException error =
                new TooManyStarts(Refusals.tooManyStarts(GlobalModel.where(order), StateStore.MAX_STARTS));
        effects.note(Level.SEVERE, error.getMessage());
        send(order.run, order.round, error);
    }

    /**
     * Shortens a text for use as the detail in a message. It keeps only the last part of each absolute path, because a
     * device's folders are private.
     */
    static String detail(String text) {
        return cut(FOLDERS.matcher(text).replaceAll(""));
    }

    private static String cut(String text) {
        int length = Math.min(MAX_DETAIL, text.codePointCount(0, text.length()));
        return text.substring(0, text.offsetByCodePoints(0, length));
    }

    /**
     * Declines an order that contains an unknown value. If it were silently dropped, the coordinator would repeat it
     * forever.
     */
    void unreadable(BodyError error) {
        try {
            OrderName name = OrderName.SCHEMA.decode(error.order());
            send(name.run, name.round, error);
        } catch (IllegalArgumentException unnamed) { // not an order, or its run and round are unreadable too
            effects.note(Level.INFO, "dropped a message that cannot be answered");
        }
    }
}
