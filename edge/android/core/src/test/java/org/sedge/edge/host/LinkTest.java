package org.sedge.edge.host;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.sedge.edge.AgentConfig;
import org.sedge.edge.wire.Reconnect.Ended;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Tests the link with brokers that send too much or accept nothing, and with errors on the reading thread. */
public class LinkTest {
    private static final byte[] ACCEPTED = {0x20, 2, 0, 0};
    private static final byte[] MESSAGE = {0x30, 3, 0, 1, 'x'};

    private ServerSocket server;
    private AgentConfig config;

    @Before
    public void listen() throws Exception {
        server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        server.setReceiveBufferSize(4096);
        config = new AgentConfig("d", "f", "mqtt://127.0.0.1:" + server.getLocalPort(), new byte[32], null);
    }

    @After
    public void close() throws IOException {
        server.close();
    }

    /** Returns a connection after reading and accepting its CONNECT. */
    private Socket accepted() throws IOException {
        return answered(ACCEPTED);
    }

    /** Returns a connection after reading its CONNECT and sending an answer. */
    private Socket answered(byte[] answer) throws IOException {
        Socket socket = server.accept();
        DataInputStream in = new DataInputStream(socket.getInputStream());
        in.readUnsignedByte();
        in.readFully(new byte[in.readUnsignedByte()]);
        socket.getOutputStream().write(answer);
        return socket;
    }

    private static Thread reader() {
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().equals("sedge-mqtt")) {
                return thread;
            }
        }
        throw new AssertionError("expected a thread that reads");
    }

    @Test
    public void aClosedLinkLeavesNoThreadWaitingForRoomAmongItsTasks() throws Exception {
        BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>(16);
        Link link = new Link(config, "p", "up", "down", new SayWhy(), new Random(1), tasks);
        link.keep();
        try (Socket broker = accepted()) {
            for (int i = 0; i < 20; i++) {
                broker.getOutputStream().write(MESSAGE);
            }
            Thread reader = reader();
            while (tasks.remainingCapacity() > 0) {
                Thread.sleep(10);
            }
            tasks.take().run(); // the event that the link has been established
            link.close();
            reader.join(10_000);
            assertTrue(!reader.isAlive());
        }
    }

    /** Records how a connection ends. */
    private static class End implements MqttConnection.Events {
        final CompletableFuture<String> reason = new CompletableFuture<>();
        volatile Ended ended;
        boolean worked;

        @Override
        public void up() { }

        @Override
        public void received(String topic, byte[] payload) { }

        @Override
        public void down(String why, Ended how) {
            ended = how;
            reason.complete(why);
        }

        @Override
        public boolean worked() {
            return worked;
        }

        String reason() throws Exception {
            return reason.get(10, TimeUnit.SECONDS);
        }
    }

    private End opened(End end) {
        MqttConnection.open(config, "id", "p", "up", new byte[1], "down", end);
        return end;
    }

    @Test
    public void howAConnectionEndsDecidesWhenTheNextOneComes() throws Exception {
        byte[][] answers = {{}, {0x20, 2, 0, 5}, ACCEPTED};
        Ended[] ends = {Ended.UNANSWERED, Ended.TURNED_AWAY, Ended.TURNED_AWAY};
        for (int i = 0; i < answers.length; i++) {
            End end = opened(new End());
            answered(answers[i]).close();
            end.reason();
            assertEquals(ends[i], end.ended);
        }
        server.close();
        End end = opened(new End());
        end.reason();
        assertEquals(Ended.REFUSED, end.ended);
    }

    @Test
    public void aLinkThatHasWorkedAsksForNoTls() throws Exception {
        for (boolean worked : new boolean[] {false, true}) {
            End end = new End();
            end.worked = worked;
            opened(end);
            answered(new byte[0]).close();
            assertEquals(!worked, end.reason().contains("does it expect TLS"));
        }
    }

    @Test
    public void anErrorOnTheReadingThreadIsTheConnectionsEnd() throws Exception {
        End end = opened(new End() {
            @Override
            public void up() {
                throw new OutOfMemoryError("Java heap space");
            }
        });
        try (Socket broker = accepted()) {
            assertEquals(config.url + ": Java heap space", end.reason());
            assertEquals("the socket is closed", -1, afterAll(broker));
        }
    }

    private static int afterAll(Socket socket) throws IOException {
        int last = 0;
        while (last >= 0) {
            last = socket.getInputStream().read();
        }
        return last;
    }

    @Test
    public void aWriteThatNobodyTakesIsCut() throws Exception {
        BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>(16);
        Link link = new Link(config, "p", "up", "down", new SayWhy(), new Random(1), tasks);
        link.keep();
        try (Socket broker = accepted()) {
            tasks.take().run();
            Thread writer = new Thread() {
                @Override
                public void run() {
                    for (int i = 0; i < 100; i++) { // together more than fits into all buffers
                        link.send("up", new byte[250_000]);
                    }
                }
            };
            writer.start();
            for (int seconds = 0; seconds < 20 && writer.isAlive(); seconds++) {
                link.cutIfStuck();
                writer.join(1000);
            }
            assertTrue(broker.isConnected() && !writer.isAlive());
        }
        link.close();
    }
}
