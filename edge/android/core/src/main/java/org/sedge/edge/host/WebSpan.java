package org.sedge.edge.host;

import org.sedge.edge.Downloads;
import org.sedge.edge.rounds.Downloader.Span;
import org.sedge.edge.wire.Manifest;

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.ProtocolException;
import java.net.SocketTimeoutException;
import java.net.URL;
import java.security.GeneralSecurityException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import javax.net.ssl.HttpsURLConnection;

/**
 * Downloads a span of a blob from an HTTP server, chunk by chunk.
 *
 * <p>No header identifies the device. At most one chunk is held in memory. The core must check what arrives.
 */
public final class WebSpan {
    private static final int SILENCE_MS = 20_000;
    private static final int MAX_REDIRECTS = 4;
    private static final Pattern RANGE = Pattern.compile("bytes (\\d{1,10})-(\\d{1,10})/(\\d{1,10}|\\*)");

    /** Receives the chunks. */
    public interface Taker {
        /** Takes a chunk. Returns whether to continue. */
        boolean chunk(int index, byte[] data);
    }

    private final Span span;
    private final Downloads downloads;
    private volatile HttpURLConnection connection;
    private volatile boolean stopped;

    public WebSpan(Span span, Downloads downloads) {
        this.span = span;
        this.downloads = downloads;
    }

    /** Stops the download from another thread, without waiting: on a JVM, closing a connection waits for its reader. */
    public void stop() {
        stopped = true;
        final HttpURLConnection open = connection;
        if (open == null) {
            return;
        }
        Thread closing = new Thread("sedge-http-stop") {
            @Override
            public void run() {
                open.disconnect();
            }
        };
        closing.setDaemon(true);
        closing.start();
    }

    public boolean stopped() {
        return stopped;
    }

    /** Fetches one chunk after another. Returns why it failed, in one line; null if all have arrived. */
    public String fetch(Taker taker) {
        try {
            boolean ranged = answered(); // otherwise the whole blob comes, and fills every hole
            int end = ranged ? span.end : span.manifest.count;
            try (DataInputStream in = new DataInputStream(connection.getInputStream())) {
                for (int index = ranged ? span.first : 0; index < end; index++) {
                    byte[] data = new byte[span.manifest.length(index)];
                    in.readFully(data);
                    if (!taker.chunk(index, data)) {
                        return "stopped";
                    }
                }
            }
            return null;
        } catch (EOFException error) {
            return shown(span.url) + ": the response was cut off";
        } catch (SocketTimeoutException error) {
            return shown(span.url) + ": silent for " + SILENCE_MS / 1000 + " s";
        } catch (IOException | GeneralSecurityException | RuntimeException error) { // the platform's, for odd responses
            return shown(span.url) + ": " + (error.getMessage() == null ? error : error.getMessage());
        } finally {
            if (connection != null) {
                connection.disconnect();
            }
        }
    }

    /** Sends the request, following redirects. Returns whether the response is only the span, not the whole blob. */
    private boolean answered() throws IOException, GeneralSecurityException {
        URL url = new URL(span.url);
        for (int asked = 0; asked <= MAX_REDIRECTS; asked++) {
            open(url);
            int status = connection.getResponseCode();
            if (status != 301 && status != 302 && status != 303 && status != 307 && status != 308) {
                return ranged(status);
            }
            URL next = new URL(url, String.valueOf(connection.getHeaderField("Location")));
            connection.disconnect();
            if (url.getProtocol().equals("https") && !next.getProtocol().equals("https")) {
                throw new ProtocolException("redirects from https to " + shown(next.toString()));
            }
            if (!downloads.permits(next.toString())) {
                throw new ProtocolException("redirects to " + shown(next.toString()) + ", which is not allowed");
            }
            url = next;
        }
        throw new ProtocolException("more than " + MAX_REDIRECTS + " redirections");
    }

    private void open(URL url) throws IOException, GeneralSecurityException {
        if (stopped) {
            throw new IOException("stopped");
        }
        Manifest blob = span.manifest;
        HttpURLConnection open = (HttpURLConnection) url.openConnection();
        if (open instanceof HttpsURLConnection && downloads.authorities != null) {
            ((HttpsURLConnection) open).setSSLSocketFactory(
                    Authorities.context(downloads.authorities).getSocketFactory());
        }
        open.setInstanceFollowRedirects(false);
        open.setUseCaches(false);
        open.setConnectTimeout(SILENCE_MS);
        open.setReadTimeout(SILENCE_MS);
        open.setRequestProperty("User-Agent", "sedge");
        open.setRequestProperty("Accept", "*/*");
        open.setRequestProperty("Accept-Encoding", "identity");
        open.setRequestProperty("Connection", "close");
        int last = blob.offset(span.end - 1) + blob.length(span.end - 1) - 1;
        open.setRequestProperty("Range", "bytes=" + blob.offset(span.first) + "-" + last);
        connection = open;
    }

    /** Whether the response is only the span. Throws if it is neither the span nor the whole blob. */
    private boolean ranged(int status) throws ProtocolException {
        String encoding = connection.getContentEncoding();
        if (encoding != null && !encoding.equals("identity")) {
            throw new ProtocolException("encoded as " + encoding);
        }
        long size = span.manifest.size;
        if (status == 206) {
            String range = String.valueOf(connection.getHeaderField("Content-Range"));
            Matcher given = RANGE.matcher(range);
            boolean right = given.matches() && Long.parseLong(given.group(1)) == span.manifest.offset(span.first)
                    && (given.group(3).equals("*") || Long.parseLong(given.group(3)) == size);
            if (right) {
                return true;
            }
            throw new ProtocolException("sent '" + range + "' for the bytes from " + span.manifest.offset(span.first)
                    + " of " + size);
        }
        if (status != 200) {
            throw new ProtocolException("answered " + (status < 0 ? "no HTTP" : String.valueOf(status)));
        }
        String length = connection.getHeaderField("Content-Length");
        if (length != null && !length.equals(String.valueOf(size))) {
            throw new ProtocolException("has " + length + " bytes, expected " + size);
        }
        return false;
    }

    /** A URL for display, without its query, which may amount to a password. */
    private static String shown(String url) {
        return url.split("\\?")[0];
    }
}
