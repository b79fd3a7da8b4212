package org.sedge.edge.rounds;

import org.sedge.edge.wire.Manifest;

/** Fetches spans of blobs over HTTP, one at a time; what comes of one it tells the core. */
public interface Downloader {
    /** Whether a URL may be asked now. */
    boolean permits(String url);

    /** GET these chunks; then {@code fetched} for each and {@code fetchEnded}, with the span's number. */
    void fetch(Span span);

    /** Give up what is under way. */
    void stop();

    /** Chunks of a blob, from {@code first} to {@code end} - 1, at a URL. */
    final class Span {
        public final int number;
        public final String url;
        public final Manifest manifest;
        public final int first;
        public final int end;

        public Span(int number, String url, Manifest manifest, int first, int end) {
            this.number = number;
            this.url = url;
            this.manifest = manifest;
            this.first = first;
            this.end = end;
        }
    }
}
