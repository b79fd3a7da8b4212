package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.rounds.State.Pending;
import org.sedge.edge.wire.Backoff;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Busy;
import org.sedge.edge.wire.Messages.Decline;
import org.sedge.edge.wire.Messages.Have;
import org.sedge.edge.wire.Messages.Offer;
import org.sedge.edge.wire.Peer;
import org.sedge.edge.wire.Refusals;
import org.sedge.edge.wire.Upload;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.logging.Level;

/**
 * Uploads updates. Each pending update is offered until its receipt arrives, but only one update per run sends its
 * chunks at a time.
 */
final class Outbox {
    /** The maximum size of an OFFER's packet, not counting the digests. */
    private static final int OFFER_BYTES = 1024;

    private final StateStore store;
    private final Blobs blobs;
    private final Peer peer;
    private final Random random;
    private final Map<String, Upload> uploads = new LinkedHashMap<>(); // keyed by the update's hash in hex
    private final Map<String, Double> retryAt = new HashMap<>();
    private boolean connected;
    /**
     * The maximum packet size announced by the broker. {@link #welcomed} is the maximum announced by the coordinator
     * for its own broker.
     */
    private int announced = Frame.MAX_PACKET;
    private int welcomed = Frame.MAX_PACKET;

    Outbox(StateStore store, Blobs blobs, Peer peer, Random random) {
        this.store = store;
        this.blobs = blobs;
        this.peer = peer;
        this.random = random;
    }

    private int maxPacket() {
        return Math.min(announced, welcomed);
    }

    private int chunkBytes() {
        return Manifest.fittingChunk(maxPacket(), (int) store.state().chunkBytes);
    }

    /**
     * Call this when the link has been established. Offers all updates.
     *
     * @param maxPacket the maximum packet size that the broker announces
     */
    void connected(double now, int maxPacket) {
        connected = true;
        announced = Math.min(maxPacket, Frame.MAX_PACKET);
        for (Upload upload : uploads.values()) {
            upload.connected(now);
        }
        cutAgain();
    }

    /** Limits packets to the size that the coordinator's broker lets through; 0 means that the size is unknown. */
    void limit(long maxPacket) {
        welcomed = maxPacket == 0 ? Frame.MAX_PACKET : (int) Math.min(maxPacket, Frame.MAX_PACKET);
        cutAgain();
    }

    /** Drops uploads whose chunks are now too large. {@link #poll} recreates them with smaller chunks. */
    private void cutAgain() {
        for (Iterator<Upload> all = uploads.values().iterator(); all.hasNext();) {
            Manifest manifest = all.next().manifest;
            if (manifest.chunkBytes > Manifest.chunkSize(manifest.size, chunkBytes())) {
                all.remove();
            }
        }
    }

    /** Call this when the coordinator is known to be online. Offers that it has not answered become due again. */
    void woken(double now) {
        for (Upload upload : uploads.values()) {
            upload.woken(now);
        }
    }

    void disconnected() {
        connected = false;
        for (Upload upload : uploads.values()) {
            upload.disconnected();
        }
    }

    void have(byte[] transfer, Have message, double now) throws FrameError {
        for (Upload upload : uploads.values()) {
            if (Arrays.equals(upload.manifest.transfer, transfer)) {
                upload.receive(message.number, message.bitmap,
                        (int) message.credit, now);
            }
        }
    }

    void busy(byte[] transfer, Busy message, double now) {
        for (Upload upload : uploads.values()) {
            if (Arrays.equals(upload.manifest.transfer, transfer)) {
                upload.busy(message.retryMs / 1000.0, now);
            }
        }
    }

    /** Sends everything that is due. An update that cannot be read from disk does not hold back the others. */
    void poll(double now, Effects effects) {
        Set<String> names = new HashSet<>();
        for (Pending waiting : store.state().outbox) {
            names.add(name(waiting));
        }
        uploads.keySet().retainAll(names);
        retryAt.keySet().retainAll(names);
        Map<String, Pending> sending = sending();
        for (Pending waiting : store.state().outbox) {
            if (now < retryAt.getOrDefault(name(waiting), now)) {
                continue;
            }
            retryAt.remove(name(waiting));
            try {
                push(waiting, now, sending.get(waiting.run) == waiting, effects);
            } catch (StorageError error) {
                waitForDisk(waiting, error, now, effects);
            }
        }
    }

    double timer() {
        double due = Double.NaN;
        for (Map.Entry<String, Upload> entry : uploads.entrySet()) {
            double at = retryAt.containsKey(entry.getKey()) ? Double.NaN : entry.getValue().timer();
            due = Backoff.earlier(due, at);
        }
        for (double at : retryAt.values()) {
            due = Backoff.earlier(due, at);
        }
        return due;
    }

    private static String name(Pending waiting) {
        return Hex.encode(waiting.blob);
    }

    /**
     * Returns the update to send for each run, keyed by run: the one whose upload has begun, otherwise the newest. An
     * update that the coordinator has postponed is chosen only if the run has no other, because the coordinator may be
     * waiting for one of the others to be transferred.
     */
    private Map<String, Pending> sending() {
        Map<String, Pending> found = new HashMap<>();
        for (Pending waiting : store.state().outbox) {
            Pending best = found.get(waiting.run);
            if (!retryAt.containsKey(name(waiting)) && (best == null || rank(waiting) >= rank(best))) {
                found.put(waiting.run, waiting);
            }
        }
        return found;
    }

    private long rank(Pending waiting) {
        Upload upload = uploads.get(name(waiting));
        return waiting.round + (upload != null && upload.begun() ? 1L << 32 : 0)
                + (upload == null || !upload.putOff() ? 1L << 33 : 0);
    }

    private void push(Pending waiting, double now, boolean sends, Effects effects) throws StorageError {
        Upload upload = uploads.get(name(waiting));
        if (upload != null && upload.wantsSmallerChunks()
                && 2 * Manifest.DIGEST_BYTES * upload.manifest.count + OFFER_BYTES <= maxPacket()) {
            store.setChunkBytes(upload.manifest.chunkBytes / 2);
            upload = null;
        }
        if (upload == null) {
            upload = new Upload(Manifest.describe(blobs.read(waiting.blob), chunkBytes()), random);
            uploads.put(name(waiting), upload);
            if (connected) {
                upload.connected(now);
            }
        }
        if (!sends && !(now >= upload.timer())) {
            return;
        }
        for (int index : upload.poll(now)) {
            byte[] frame = index == Upload.OFFER ? offer(waiting, upload) : chunk(upload.manifest, index);
            int packet = Frame.packetBytes(peer.topic, frame);
            if (packet > maxPacket()) {
                giveUp(waiting, upload.manifest.size, packet, effects);
                return;
            }
            effects.send(peer.topic, frame);
        }
    }

    /** Drops an update for which no chunk size is small enough. Informs the coordinator, and logs the loss. */
    private void giveUp(Pending waiting, int size, int packet, Effects effects) throws StorageError {
        store.removeUpdate(waiting);
        uploads.remove(name(waiting));
        String text = Refusals.messageTooLarge(size, packet, maxPacket());
        String run = waiting.run;
        long round = waiting.round;
        effects.note(Level.SEVERE, "run " + run + ", round " + round + ": " + text);
        effects.send(peer.topic, peer.seal(Kind.DECLINE, Decline.SCHEMA.empty().with(Decline.RUN, run)
                .with(Decline.ROUND, round).with(Decline.REASON, "MessageTooLarge").with(Decline.DETAIL, text), null));
    }

    private byte[] offer(Pending waiting, Upload upload) throws StorageError {
        byte[] data = upload.inline() ? blobs.read(waiting.blob) : new byte[0];
        Offer offer = Offer.SCHEMA.empty().with(Offer.RUN, waiting.run)
                .with(Offer.ROUND, waiting.round).with(Offer.MANIFEST, upload.manifest)
                .with(Offer.NUMBER, upload.number()).with(Offer.DATA, data);
        return peer.seal(Kind.OFFER, offer, upload.manifest.transfer);
    }

    private byte[] chunk(Manifest manifest, int index) throws StorageError {
        byte[] data = blobs.readSpan(manifest.sha256, manifest.offset(index), manifest.length(index));
        if (!manifest.matches(index, data)) {
            blobs.read(manifest.sha256); // damaged; reading the whole blob checks its hash and removes it
        }
        return peer.chunk(manifest.transfer, index, data);
    }

    /** Tries again later. Drops an update whose blob is lost, because it would otherwise block its round forever. */
    private void waitForDisk(Pending waiting, StorageError error, double now, Effects effects) {
        effects.note(Level.SEVERE, error.getMessage());
        try {
            if (!blobs.has(waiting.blob)) {
                store.removeUpdate(waiting);
                effects.note(Level.SEVERE, "run " + waiting.run + ", round " + waiting.round
                        + ": the update is lost; the order runs again if the coordinator resends it");
                return;
            }
        } catch (StorageError again) {
            effects.note(Level.SEVERE, again.getMessage());
        }
        retryAt.put(name(waiting), now + DiskWaits.RETRY_S);
    }
}
