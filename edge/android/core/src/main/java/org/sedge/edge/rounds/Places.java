package org.sedge.edge.rounds;

import org.sedge.edge.rounds.Downloader.Span;
import org.sedge.edge.wire.Fetch;
import org.sedge.edge.wire.Hex;

import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.logging.Level;

/**
 * Blobs from HTTP servers: chooses which to download there, one at a time, and handles failures (spec/extensions.md, X19
 * to X22). Keys are transfer ids in hex.
 */
final class Places {
    /** After this long without a whole chunk, MQTT may do better and does no worse. */
    static final double STALL_S = 60;
    private static final double PAUSE_FIRST_S = 60;
    private static final double PAUSE_MAX_S = 3600;
    /** How many blobs with a wrong place are remembered. */
    private static final int MAX_DROPPED = 64;

    /** Bytes that have arrived but have not been reported yet. */
    long received;
    private final Random random;
    private final Map<String, String> chosen = new LinkedHashMap<>(); // the URL of each transfer that comes from a place
    private final Set<String> seen = new HashSet<>();
    private final Set<String> dropped = new LinkedHashSet<>(); // SHA-256 of blobs
    private Downloader downloader;
    private Span span;
    private int number;
    private double stallAt = Double.NaN;
    private double pauseUntil = Double.NEGATIVE_INFINITY;
    private int failures;

    Places(Random random) {
        this.random = random;
    }

    void allow(Downloader downloader) {
        this.downloader = downloader;
    }

    /** Whether this blob comes from a web server, so that no part of it is requested over MQTT. */
    boolean takes(String transfer) {
        return chosen.containsKey(transfer);
    }

    /** The current request; null: none. */
    Span asked() {
        return span;
    }

    /** Chooses a source for each download that has begun, and requests the next span if the MQTT link is up. */
    void sync(Map<String, Fetch> active, Map<String, String> urls, double now, boolean connected) {
        chosen.keySet().retainAll(active.keySet());
        seen.retainAll(active.keySet());
        if (span != null && !active.containsKey(Hex.encode(span.manifest.transfer))) {
            halt();
        }
        for (Map.Entry<String, Fetch> entry : active.entrySet()) {
            String url = urls.get(entry.getKey());
            if (seen.add(entry.getKey()) && url != null && downloader != null && now >= pauseUntil
                    && !dropped.contains(Hex.encode(entry.getValue().manifest.sha256)) && downloader.permits(url)) {
                chosen.put(entry.getKey(), url);
            }
        }
        for (String transfer : active.keySet()) {
            if (connected && span == null && takes(transfer)) {
                ask(active.get(transfer), chosen.get(transfer), now);
            }
        }
    }

    private void ask(Fetch fetch, String url, double now) {
        int first = fetch.have.nextClearBit(0);
        if (first >= fetch.manifest.count) {
            return;
        }
        int held = fetch.have.nextSetBit(first);
        span = new Span(++number, url, fetch.manifest, first, held < 0 ? fetch.manifest.count : held);
        stallAt = now + STALL_S;
        downloader.fetch(span);
    }

    /** A valid chunk has arrived. */
    void heard(int size, double now) {
        received += size;
        failures = 0;
        stallAt = now + STALL_S;
    }

    /** The requested span has ended, and all of it has arrived. */
    void ended() {
        span = null;
        stallAt = Double.NaN;
    }

    /** Stops the current request; it may be repeated later. */
    void halt() {
        if (span != null) {
            ended();
            downloader.stop();
        }
    }

    /** The server failed: this blob is not requested by HTTP again, and no server is asked for a while. */
    void failed(String why, double now, Effects effects) {
        String sha256 = Hex.encode(span.manifest.sha256);
        chosen.clear();
        if (dropped.size() >= MAX_DROPPED) {
            dropped.remove(dropped.iterator().next());
        }
        dropped.add(sha256);
        double ceiling = Math.min(PAUSE_MAX_S, PAUSE_FIRST_S * Math.pow(2, Math.min(failures, 10)));
        pauseUntil = now + ceiling * (0.5 + 0.5 * random.nextDouble());
        failures++;
        halt();
        effects.note(Level.WARNING, "blob " + sha256.substring(0, 16) + ": " + why + "; fetching the rest over MQTT");
    }

    /** Whether the server has been silent for too long. */
    boolean stalled(double now) {
        return now >= stallAt;
    }

    /** When silence counts as a failure; NaN: not before something happens. */
    double timer() {
        return stallAt;
    }
}
