package org.sedge.edge.host;

import static org.junit.Assert.assertTrue;

import org.junit.Test;
import org.sedge.edge.Downloads;
import org.sedge.edge.rounds.Downloader.Span;
import org.sedge.edge.wire.Manifest;

import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;

/** Tests stopping a download from another thread. */
public final class WebSpanTest {
    private static final int CHUNK = 4096;

    @Test(timeout = 15_000) // less than the timeout for silent servers
    public void stopDoesNotWaitForAServerThatSaysNothingMore() throws Exception {
        byte[] blob = new byte[2 * CHUNK];
        try (ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            String url = "http://127.0.0.1:" + server.getLocalPort() + "/blob";
            WebSpan web = new WebSpan(new Span(1, url, Manifest.describe(blob, CHUNK), 0, 2), Downloads.ANY);
            CountDownLatch first = new CountDownLatch(1);
            Thread work = new Thread(() -> web.fetch((index, data) -> {
                first.countDown();
                return true;
            }));
            work.setDaemon(true);
            work.start();
            try (Socket client = server.accept()) {
                OutputStream out = client.getOutputStream();
                String head = "HTTP/1.1 200 OK\r\nContent-Length: " + blob.length + "\r\n\r\n";
                out.write(head.getBytes(StandardCharsets.US_ASCII));
                out.write(blob, 0, CHUNK);
                first.await();
                Thread.sleep(200); // the download is now waiting for more data
                web.stop();
                assertTrue(web.stopped());
            }
        }
    }
}
