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
 * Decides which blobs to download from HTTP servers, one at a time, and handles failures (spec/extensions.md, X19 to
 * X22). Keys are transfer ids in hex.
 */
final class Places {
    /**
     * Give up on a server that has not delivered a whole chunk for this long: MQTT may be faster, and cannot be slower.
     */
    static final double STALL_S = 60;
    private static final double PAUSE_FIRST_S = 60;
    private static final double PAUSE_MAX_S = 3600;
    /** The number of blobs to remember whose HTTP download has failed. */
    private static final int MAX_DROPPED = 64;

    /** The number of bytes received but not yet reported. */
    long received;
    private final Random random;
    private final Map<String, String> chosen = new LinkedHashMap<>(); // URLs to download from, keyed by transfer
    private final Set<String> seen = new HashSet<>();
    private final Set<String> dropped = new LinkedHashSet<>(); // SHA-256 of blobs whose HTTP download has failed
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

    /** Returns true if this blob is downloaded from a web server, so that none of it is requested over MQTT. */
    boolean takes(String transfer) {
        return chosen.containsKey(transfer);
    }

    /** Returns the span that is being requested, or null if there is none. */
    Span asked() {
        return span;
    }

    /** Chooses a source for each download that has begun, and requests the next span if the MQTT link is up. */
    void sync(Map<String, Fetch> active, Map<String, String> urls, double now, boolean connected) {
        chosen.keySet().retainAll(active.keySet());
        for (Map.Entry<String, String> entry : chosen.entrySet()) { // a repeated order may have newer URLs
            entry.setValue(urls.getOrDefault(entry.getKey(), entry.getValue()));
        }
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

    /** Call this when a valid chunk has arrived. */
    void heard(int size, double now) {
        received += size;
        failures = 0;
        stallAt = now + STALL_S;
    }

    /** Call this when the requested span has arrived completely. */
    void ended() {
        span = null;
        stallAt = Double.NaN;
    }

    /** Stops the current request, which may be repeated later. */
    void halt() {
        if (span != null) {
            ended();
            downloader.stop();
        }
    }

    /**
     * Call this when the server has failed. The requested blob is not requested over HTTP again, and no server receives
     * a request for a while.
     */
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

    /** Returns true if the server has been silent for too long. */
    boolean stalled(double now) {
        return now >= stallAt;
    }

    /** Returns the time at which the server's silence will count as a failure; NaN if no request is running. */
    double timer() {
        return stallAt;
    }
}
