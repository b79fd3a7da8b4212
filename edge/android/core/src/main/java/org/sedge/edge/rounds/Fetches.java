package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.GlobalModel;
import org.sedge.edge.wire.Backoff;
import org.sedge.edge.wire.Fetch;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Get;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Place;
import org.sedge.edge.wire.Peer;
import org.sedge.edge.wire.Topics;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.logging.Level;

/** Downloads the blobs that the orders need and that are not on disk yet. Keys are transfer ids in hex. */
final class Fetches {
    private final String fleet;
    private final Blobs blobs;
    private final Peer peer;
    private final Random random;
    private final BlobLimits limits;
    private final Map<String, Fetch> active = new LinkedHashMap<>();
    private final Map<String, Order> wanted = new LinkedHashMap<>();
    private final Set<String> listening = new HashSet<>();
    private final Map<String, Double> retryAt = new LinkedHashMap<>();
    private final Map<String, String> refused = new LinkedHashMap<>();
    /** The downloads that use HTTP. */
    final Places places;
    private boolean connected;

    Fetches(String fleet, Blobs blobs, Peer peer, Random random, BlobLimits limits) {
        this.fleet = fleet;
        this.blobs = blobs;
        this.peer = peer;
        this.random = random;
        this.limits = limits;
        places = new Places(random);
    }

    void connected(double now, Effects effects) {
        connected = true;
        listening.clear();
        for (Fetch fetch : active.values()) {
            fetch.connected(now);
        }
        listen(effects);
    }

    /** Call this when the coordinator is known to be online. Requests that it has not answered become due again. */
    void woken(double now) {
        for (Fetch fetch : active.values()) {
            fetch.woken(now);
        }
    }

    void disconnected() {
        connected = false;
        places.halt(); // the device's own network may be at fault, not the servers
        for (Fetch fetch : active.values()) {
            fetch.disconnected();
        }
    }

    /** Returns the blobs that an order needs and that are not on disk yet. */
    List<Manifest> missing(Order order) {
        List<Manifest> found = new ArrayList<>();
        for (Manifest manifest : GlobalModel.needed(order, blobs)) {
            if (!blobs.has(manifest.sha256)) {
                found.add(manifest);
            }
        }
        return found;
    }

    /** Returns why the disk has no room for one of the blobs, or "" if it has room for all. */
    String refused() {
        return refused.isEmpty() ? "" : refused.values().iterator().next();
    }

    /**
     * Fetches the blobs that these orders need, and stops all other downloads. A blob for which there is no room
     * ({@link #refused}) is tried again later.
     */
    void sync(Collection<Order> orders, double now, Effects effects) throws StorageError {
        Map<String, Manifest> manifests = new LinkedHashMap<>();
        Map<String, String> urls = new HashMap<>();
        wanted.clear();
        for (Order order : orders) {
            for (Manifest manifest : missing(order)) {
                if (limits.mayBegin(order, manifest)) {
                    manifests.put(Hex.encode(manifest.transfer), manifest);
                    wanted.putIfAbsent(Hex.encode(manifest.transfer), order);
                    for (Place place : order.places) {
                        if (Arrays.equals(place.sha256, manifest.sha256)) {
                            urls.putIfAbsent(Hex.encode(manifest.transfer), place.url);
                        }
                    }
                }
            }
        }
        active.keySet().retainAll(manifests.keySet());
        retryAt.keySet().retainAll(manifests.keySet());
        for (String transfer : new ArrayList<>(retryAt.keySet())) {
            if (retryAt.get(transfer) <= now) {
                retryAt.remove(transfer);
            }
        }
        refused.keySet().retainAll(retryAt.keySet());
        for (Map.Entry<String, Manifest> entry : manifests.entrySet()) {
            if (!active.containsKey(entry.getKey()) && !retryAt.containsKey(entry.getKey())) {
                begin(entry.getKey(), entry.getValue(), now, effects);
            }
        }
        for (String transfer : new ArrayList<>(active.keySet())) {
            // All chunks have arrived, but a crash or a full disk prevented assembling them.
            if (active.get(transfer).complete()) {
                complete(transfer, now, effects);
            }
        }
        places.sync(active, urls, now, connected);
        listen(effects);
    }

    private void begin(String transfer, Manifest manifest, double now, Effects effects) {
        try {
            Fetch fetch = new Fetch(manifest, blobs.openPart(manifest), random);
            active.put(transfer, fetch);
            if (connected) {
                fetch.connected(now);
            }
        } catch (StorageError error) { // a download without room must not hold back downloads for other orders
            retryAt.put(transfer, now + DiskWaits.RETRY_S);
            refused.put(transfer, error.getMessage());
            effects.note(Level.SEVERE, error.getMessage());
        }
    }

    /**
     * Stores a chunk. Returns true if its blob is being fetched.
     *
     * @throws FrameError if the chunk does not belong to the blob
     */
    boolean chunk(Frame frame, double now, Effects effects) throws StorageError, FrameError {
        String transfer = Hex.encode(frame.transfer);
        Fetch fetch = active.get(transfer);
        if (fetch == null) {
            return false;
        }
        keep(fetch, frame.index, frame.body, now, effects);
        return true;
    }

    private void keep(Fetch fetch, long index, byte[] data, double now, Effects effects)
            throws StorageError, FrameError {
        if (fetch.chunk(index, data, now)) {
            try {
                blobs.writePart(fetch.manifest, (int) index, data);
            } catch (StorageError error) {
                fetch.have.clear((int) index);
                throw error;
            }
        }
        if (fetch.complete()) {
            complete(Hex.encode(fetch.manifest.transfer), now, effects);
            listen(effects);
        }
    }

    /** Returns the download to which an HTTP span belongs, or null if the span was stopped. */
    private Fetch spanned(int number) {
        Downloader.Span span = places.asked();
        boolean current = span != null && span.number == number;
        return current ? active.get(Hex.encode(span.manifest.transfer)) : null;
    }

    /** Stores a chunk that has arrived over HTTP. Returns true if {@code poll} should be called again. */
    boolean fetched(int number, int index, byte[] data, double now, Effects effects) throws StorageError {
        Fetch fetch = spanned(number);
        if (fetch == null) {
            return false;
        }
        try {
            keep(fetch, index, data, now, effects);
        } catch (FrameError error) {
            overMqtt(places.asked().url.split("\\?")[0] + ": " + error.getMessage(), now, effects);
            return true;
        }
        places.heard(data.length, now);
        if (fetch.complete()) {
            places.halt(); // a server without range support may still be sending chunks that we already have
        }
        return fetch.complete();
    }

    /**
     * Call this when an HTTP span has ended.
     *
     * @param error why the span failed; null if it is complete
     */
    void fetchEnded(int number, String error, double now, Effects effects) {
        if (spanned(number) != null && error != null) {
            overMqtt(error, now, effects);
        } else if (spanned(number) != null) {
            places.ended();
        }
    }

    /** Fetches the remaining chunks over MQTT, because the web server failed. */
    private void overMqtt(String why, double now, Effects effects) {
        List<Fetch> left = new ArrayList<>();
        for (Map.Entry<String, Fetch> entry : active.entrySet()) {
            if (places.takes(entry.getKey())) {
                left.add(entry.getValue());
            }
        }
        places.failed(why, now, effects);
        for (Fetch fetch : left) {
            if (connected) {
                fetch.connected(now);
            }
        }
        listen(effects);
    }

    /** Sends the requests that are due. Each names the first order that needs the blob. */
    void poll(double now, Effects effects) {
        if (places.stalled(now)) {
            overMqtt("no chunk arrived within " + Math.round(Places.STALL_S) + " s", now, effects);
        }
        for (Map.Entry<String, Fetch> entry : active.entrySet()) {
            Fetch fetch = entry.getValue();
            BitSet asked = listening.contains(entry.getKey()) ? fetch.poll(now) : null;
            if (asked != null) {
                Order order = wanted.get(entry.getKey());
                Get get = Get.SCHEMA.empty().with(Get.RUN, order.run)
                        .with(Get.ROUND, order.round)
                        .with(Get.MISSING, Manifest.toBitmap(asked, fetch.manifest.count));
                effects.send(peer.topic, peer.seal(Kind.GET, get, fetch.manifest.transfer));
            }
        }
    }

    double timer() {
        double due = places.timer();
        for (double at : retryAt.values()) {
            due = Backoff.earlier(due, at);
        }
        for (Map.Entry<String, Fetch> entry : active.entrySet()) {
            due = Backoff.earlier(due, places.takes(entry.getKey()) ? Double.NaN : entry.getValue().timer());
        }
        return due;
    }

    /**
     * Assembles the blob from its chunks. If its hash is wrong, starts over later: either the disk or the manifest is
     * at fault.
     */
    private void complete(String transfer, double now, Effects effects) throws StorageError {
        if (!blobs.finishPart(active.get(transfer).manifest)) {
            retryAt.put(transfer, now + DiskWaits.RETRY_S);
            String name = Hex.encode(active.get(transfer).manifest.sha256).substring(0, 16);
            effects.note(Level.WARNING, "blob " + name + ": its chunks do not match its sha256; fetching it again in "
                    + Math.round(DiskWaits.RETRY_S) + " s");
        }
        active.remove(transfer);
    }

    /**
     * Subscribes to the topics of running downloads, and unsubscribes from others. It computes the difference anew each
     * time, so that no subscription is lost if an error interrupts it.
     */
    private void listen(Effects effects) {
        if (!connected) {
            return;
        }
        for (String transfer : new ArrayList<>(listening)) {
            if (!active.containsKey(transfer) || places.takes(transfer)) {
                listening.remove(transfer);
                effects.unsubscribe(Topics.blob(fleet, Hex.decode(transfer)));
            }
        }
        for (String transfer : active.keySet()) {
            if (!places.takes(transfer) && listening.add(transfer)) {
                effects.subscribe(Topics.blob(fleet, Hex.decode(transfer)));
            }
        }
    }
}
