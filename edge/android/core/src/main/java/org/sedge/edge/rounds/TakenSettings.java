package org.sedge.edge.rounds;

import org.sedge.edge.Limits;
import org.sedge.edge.SedgeException.BodyError;
import org.sedge.edge.SedgeException.RemoteError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Json;
import org.sedge.edge.wire.Messages.Welcome;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.logging.Level;

/**
 * Settings that a device accepts from its coordinator. They can only make its own settings stricter (spec/settings.md).
 *
 * <p>This client supports only the settings for limits. In place of gates, Android has job conditions.
 */
final class TakenSettings {
    private static final int NAME_BYTES = 8;
    private static final String ORDERS = "limits.orders_per_hour";

    private final Limits own;
    private final StateStore store;
    private final Handshake handshake;
    private final Budget budget;
    private final Blobs blobs;

    /** @param own the device's own limits; null if it accepts no settings */
    TakenSettings(Limits own, StateStore store, Handshake handshake, Budget budget, Blobs blobs) {
        this.own = own;
        this.store = store;
        this.handshake = handshake;
        this.budget = budget;
        this.blobs = blobs;
    }

    /** Applies the settings accepted during an earlier start. */
    void begin() throws StorageError {
        if (own == null) {
            return;
        }
        byte[] coded = store.state().settings;
        try {
            apply(tightened(read(coded), new ArrayList<>()));
        } catch (RemoteError error) {
            throw new StorageError("journal: " + error.getMessage(), error);
        }
        handshake.follows(name(coded));
    }

    /** Accepts the settings in the answer to this connection's hello, if they have changed. */
    void welcomed(Welcome message, double now, Effects effects) throws RemoteError, StorageError {
        byte[] coded = message.settings;
        if (own == null || !handshake.isAnswer(message) || Arrays.equals(coded, store.state().settings)) {
            return;
        }
        Map<?, ?> given = read(coded);
        List<String> ignored = new ArrayList<>();
        Limits limits = tightened(given, ignored);
        store.takeSettings(coded);
        apply(limits);
        handshake.follows(name(coded));
        handshake.begin(now);
        effects.note(Level.INFO, given.isEmpty() ? "the coordinator has withdrawn its settings"
                : "settings of the coordinator: " + given);
        if (!ignored.isEmpty()) {
            effects.note(Level.WARNING, "ignored some of the coordinator's settings: " + String.join(", ", ignored));
        }
    }

    private void apply(Limits limits) {
        budget.tighten(limits);
        blobs.share(limits.diskShare);
    }

    private static byte[] name(byte[] coded) {
        return coded.length == 0 ? coded : Arrays.copyOf(Digests.sha256(coded), NAME_BYTES);
    }

    private static Map<?, ?> read(byte[] coded) throws RemoteError {
        try {
            Object json = Json.parse(coded.length == 0 ? "{}" : new String(coded, StandardCharsets.UTF_8));
            if (json instanceof Map) {
                boolean flat = true;
                for (Object value : ((Map<?, ?>) json).values()) {
                    flat &= value instanceof Number || value instanceof Boolean || value instanceof String;
                }
                if (flat) {
                    return (Map<?, ?>) json;
                }
            }
        } catch (IllegalArgumentException error) {
            throw new BodyError("settings: " + error.getMessage(), new byte[0]);
        }
        throw new BodyError("settings: expected an object of numbers, texts and truth values", new byte[0]);
    }

    /**
     * Returns, for each limit, the stricter of the device's own value and the given one. Adds settings that are ignored
     * to the list.
     */
    private Limits tightened(Map<?, ?> given, List<String> ignored) {
        Limits now = own;
        for (Map.Entry<?, ?> entry : given.entrySet()) {
            Object value = entry.getValue();
            double number = value instanceof Number ? ((Number) value).doubleValue() : Double.NaN;
            try {
                // as in Python, a float is wrong even if it is 2.0
                if (entry.getKey().equals(ORDERS) && value instanceof Double) {
                    throw new IllegalArgumentException("Expected `int`, got `float`");
                }
                Limits other = with(now, (String) entry.getKey(), number);
                if (other != null) {
                    now = other;
                    continue;
                }
                ignored.add(entry.getKey() + " = " + value + " (no such key here)");
            } catch (IllegalArgumentException error) {
                ignored.add(entry.getKey() + " = " + value + " (" + error.getMessage() + ")");
            }
        }
        return now;
    }

    /** Returns the limits with one of them tightened, or null if the key names no limit. */
    private static Limits with(Limits now, String key, double value) {
        switch (key) {
            case ORDERS:
                return new Limits((int) stricter(value, now.ordersPerHour), now.megabytesPerDay,
                        now.trainingHoursPerDay, now.diskShare);
            case "limits.megabytes_per_day":
                return new Limits(now.ordersPerHour, stricter(value, now.megabytesPerDay),
                        now.trainingHoursPerDay, now.diskShare);
            case "limits.training_hours_per_day":
                return new Limits(now.ordersPerHour, now.megabytesPerDay,
                        stricter(value, now.trainingHoursPerDay), now.diskShare);
            case "limits.disk_share":
                return new Limits(now.ordersPerHour, now.megabytesPerDay, now.trainingHoursPerDay,
                        stricter(value, now.diskShare));
            default:
                return null;
        }
    }

    private static double stricter(double value, double own) {
        if (!(value <= own)) {
            throw new IllegalArgumentException(own + " is stricter");
        }
        return value;
    }
}
