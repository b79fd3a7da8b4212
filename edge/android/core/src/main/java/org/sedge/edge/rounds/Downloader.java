package org.sedge.edge.rounds;

import org.sedge.edge.wire.Manifest;

/** Fetches spans of blobs over HTTP, one at a time, and passes the results to the core. */
public interface Downloader {
    /** Whether a URL may be requested now. */
    boolean permits(String url);

    /** GET these chunks; then call {@code fetched} for each, and {@code fetchEnded}, with the span's number. */
    void fetch(Span span);

    /** Abandon the current request. */
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
