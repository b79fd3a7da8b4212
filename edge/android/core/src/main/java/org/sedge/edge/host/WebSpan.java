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
 * <p>No request header identifies the device. At most one chunk is held in memory. The chunks are not verified here;
 * that is up to the core.
 */
public final class WebSpan {
    private static final int SILENCE_MS = 20_000;
    private static final int MAX_REDIRECTS = 4;
    private static final Pattern RANGE = Pattern.compile("bytes (\\d{1,10})-(\\d{1,10})/(\\d{1,10}|\\*)");

    /** Receives the downloaded chunks. */
    public interface Taker {
        /** Receives a chunk. Returns true to continue the download. */
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

    /**
     * Stops the download. Call it from another thread. It does not wait for the connection to close, which on a JVM
     * would take until its reader is done.
     */
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

    /**
     * Downloads the chunks one after another. Returns null if all have arrived, otherwise one line that says what went
     * wrong.
     */
    public String fetch(Taker taker) {
        try {
            boolean ranged = answered(); // the server sends the whole blob, so fill in all missing chunks
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
        } catch (IOException | GeneralSecurityException | RuntimeException error) { // the platform throws these, too
            return shown(span.url) + ": " + (error.getMessage() == null ? error : error.getMessage());
        } finally {
            if (connection != null) {
                connection.disconnect();
            }
        }
    }

    /**
     * Sends the request and follows redirects. Returns true if the response is only the span, and false if it is the
     * whole blob.
     */
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
        throw new ProtocolException("more than " + MAX_REDIRECTS + " redirects");
    }

    private void open(URL url) throws IOException, GeneralSecurityException {
        if (stopped) {
            throw new IOException("stopped");
        }
        Manifest blob = span.manifest;
        HttpURLConnection open = (HttpURLConnection) url.openConnection();
        if (open instanceof HttpsURLConnection && downloads.authorities != null) {
            ((HttpsURLConnection) open).setSSLSocketFactory(
                    Authorities.context(downloads.authorities, null).getSocketFactory());
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

    /** Returns true if the response is only the span, and false if it is the whole blob. Throws if it is neither. */
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

    /** Returns a URL for messages. It leaves out the query, which may contain a secret. */
    private static String shown(String url) {
        return url.split("\\?")[0];
    }
}
