package org.sedge.edge.rounds;

import org.sedge.edge.wire.Manifest;

/** Fetches spans of blobs over HTTP, one at a time, and passes the results to the core. */
public interface Downloader {
    /** Returns true if this URL may be requested now. */
    boolean permits(String url);

    /**
     * Requests these chunks. Passes each to the core's {@code fetched}, and finally calls {@code fetchEnded}, both with
     * the span's number.
     */
    void fetch(Span span);

    /** Abandons the current request. */
    void stop();

    /** The chunks of a blob from {@code first} to {@code end} - 1, available at a URL. */
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
