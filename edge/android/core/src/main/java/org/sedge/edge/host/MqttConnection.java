package org.sedge.edge.host;

import org.sedge.edge.AgentConfig;
import org.sedge.edge.SedgeException;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Reconnect.Ended;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.time.Instant;
import java.util.Arrays;

import javax.net.ssl.SSLException;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;

/**
 * One connection to the broker. It implements the part of MQTT 3.1.1 that the protocol uses: clean sessions, wills, and
 * QoS 0.
 *
 * <p>These features need ten packet types. The only Java client in Debian 12 supports all packet types but needs two
 * more libraries, so it is not used.
 */
public final class MqttConnection {
    public static final int KEEPALIVE_S = 30;
    private static final int CONNECT_TIMEOUT_MS = 10_000;
    /** The connection counts as lost if the broker sends neither a message nor a ping response for this long. */
    private static final int SILENCE_MS = 4 * KEEPALIVE_S * 1000;
    private static final int CLOSE_MS = 2000;
    private static final long STUCK_MS = 2000;
    private static final int CONNECT = 0x10;
    private static final int CONNACK = 2;
    /** The meanings of the return codes in a CONNACK. The last text is used for all other codes. */
    private static final String[] REFUSALS = {"Success", "Unsupported protocol version", "Client identifier not valid",
        "Server unavailable", "Bad user name or password", "Not authorized", "Unspecified error"};
    static final String REFUSES_US = ": the broker refuses us: ";
    private static final int PUBLISH = 3;
    private static final int SUBSCRIBE = 0x82;
    private static final int SUBACK = 9;
    private static final int UNSUBSCRIBE = 0xa2;
    private static final int PING = 0xc0;
    private static final int DISCONNECT = 0xe0;

    /** Receives a connection's events, on a separate thread. */
    public interface Events {
        /** Called when the broker has accepted the connection. */
        void up() throws InterruptedException;

        void received(String topic, byte[] payload) throws InterruptedException;

        /** Called when the connection has ended, with the reason. No other call follows. */
        void down(String reason, Ended ended) throws InterruptedException;

        /** Returns true if the broker has ever accepted a connection. */
        boolean worked();
    }

    /** The broker refused the connection or a subscription. */
    @SuppressWarnings("serial")
    private static final class Refused extends IOException {
        Refused(String what) {
            super(what);
        }
    }

    /**
     * A socket whose failed writes stay silent until the broker has accepted us over TLS, so that the next read shows
     * why the connection ended. A broker that refuses our certificate says so and closes the connection, but a JVM
     * sends the rest of its handshake before it reads that.
     */
    private final class ReadFirst extends Socket {
        @Override
        public OutputStream getOutputStream() throws IOException {
            return new FilterOutputStream(super.getOutputStream()) {
                @Override
                public void write(byte[] bytes, int from, int length) throws IOException {
                    try {
                        out.write(bytes, from, length);
                    } catch (SocketException error) {
                        if (accepted || !config.tls) {
                            throw error;
                        }
                    }
                }
            };
        }
    }

    private final AgentConfig config;
    private final Events events;
    private final Socket bare = new ReadFirst();
    private Socket socket = bare;
    /** Whether the broker's machine has answered; {@link #accepted} tells whether the broker has accepted us. */
    private boolean reached;
    private boolean accepted;
    private int packetId;
    private volatile long writingSince; // by System.nanoTime(); 0 while nothing is being written
    private Thread thread;

    private MqttConnection(AgentConfig config, Events events) {
        this.config = config;
        this.events = events;
    }

    /** Starts a connection in a separate thread, which also subscribes to one topic. */
    public static MqttConnection open(AgentConfig config, String clientId, String password, String willTopic,
            byte[] will, String subscription, Events events) {
        MqttConnection connection = new MqttConnection(config, events);
        connection.thread = new Thread("sedge-mqtt") {
            @Override
            public void run() {
                String reason;
                Ended ended = Ended.UNANSWERED;
                try {
                    connection.dial();
                    connection.write(CONNECT, connection.connect(clientId, password, willTopic, will));
                    connection.read(subscription);
                    reason = connection.closedBy();
                    ended = connection.ended(null);
                } catch (InterruptedException closed) {
                    reason = config.url + ": closed";
                } catch (Exception | Error error) { // even out of memory, tell the owner that the connection ended
                    reason = connection.said(error);
                    ended = connection.ended(error);
                }
                connection.hangUp();
                try {
                    events.down(reason, ended);
                } catch (InterruptedException closed) {
                    interrupt(); // nobody is waiting for this event any more
                }
            }
        };
        connection.thread.setDaemon(true);
        connection.thread.start();
        return connection;
    }

    /** Returns why the connection ended, where possible in the same words as the Python agent. */
    private String said(Throwable error) {
        if (error instanceof Refused) {
            return config.url + " refused " + error.getMessage();
        }
        String alert = error instanceof SSLException ? Alerts.meaning(error) : null;
        if (alert != null) {
            return config.url + REFUSES_US + alert + ownDates();
        }
        if (!reached || error instanceof SSLException) {
            return "cannot reach " + config.url + ": " + cause(error) + ownDates();
        }
        if (error instanceof SocketTimeoutException) {
            return config.url + (accepted ? ": Keep alive timeout" : " accepted the connection but did not answer");
        }
        return error instanceof EOFException || error instanceof SocketException
                ? closedBy() : config.url + ": " + cause(error);
    }

    /** Returns what is wrong with the dates of our certificate; empty if nothing is. */
    private String ownDates() {
        Instant now = Instant.now();
        return config.certificate == null || config.certificate.isValid(now) ? "" : "; " + config.certificate.said(now);
    }

    private String closedBy() {
        String hint = accepted || config.tls || events.worked() ? "" : " (does it expect TLS, mqtts?)";
        return config.url + ": the broker closed the connection" + hint;
    }

    /**
     * Classifies the end of a connection on which no message arrived. The result determines how long to wait before the
     * next connection.
     */
    private Ended ended(Throwable error) {
        if (accepted || error instanceof Refused) {
            return Ended.TURNED_AWAY;
        }
        String says = error == null ? "" : String.valueOf(error.getMessage());
        if (error instanceof SocketException && (says.contains("refused") || says.contains("reset"))
                || error instanceof SSLException && error.getCause() instanceof EOFException) {
            return Ended.REFUSED;
        }
        return error instanceof SSLException ? Ended.TURNED_AWAY : Ended.UNANSWERED;
    }

    private static String cause(Throwable error) {
        return error instanceof UnknownHostException ? "Name or service not known"
                : error instanceof SocketTimeoutException ? "timed out"
                : error.getMessage() == null ? error.toString() : error.getMessage();
    }

    /** Sends one message. If the link is down, the message is dropped; callers must expect to lose any message. */
    public void send(String topic, byte[] payload) {
        attempt(PUBLISH << 4, topic.getBytes(StandardCharsets.UTF_8), payload, false);
    }

    public void subscribe(String topic) {
        attempt(SUBSCRIBE, topic.getBytes(StandardCharsets.UTF_8), new byte[1], true);
    }

    public void unsubscribe(String topic) {
        attempt(UNSUBSCRIBE, topic.getBytes(StandardCharsets.UTF_8), new byte[0], true);
    }

    /** Sends a ping, which keeps the connection alive. */
    public void ping() {
        try {
            write(PING, new byte[0]);
        } catch (IOException error) {
            hangUp();
        }
    }

    /**
     * Closes the connection cleanly, so that the broker receives everything sent before and does not publish the will.
     */
    public void close() {
        try {
            write(DISCONNECT, new byte[0]);
            thread.join(CLOSE_MS); // wait until the broker has read everything and hangs up
        } catch (IOException error) {
            hangUp();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        hangUp();
    }

    /** Returns true if a write has been waiting for longer than is possible with a working broker. */
    public boolean stuck() {
        long since = writingSince;
        return since != 0 && System.nanoTime() - since > STUCK_MS * 1_000_000;
    }

    /** Ends the connection at once, so that the broker publishes the will. Any thread may call it. */
    public void hangUp() {
        try {
            bare.close();
            socket.close();
        } catch (IOException error) {
            return; // the connection is closed anyway
        }
        if (Thread.currentThread() != thread) {
            thread.interrupt();
        }
    }

    private void attempt(int head, byte[] name, byte[] rest, boolean hasId) {
        try {
            ByteArrayOutputStream body = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(body);
            if (hasId) {
                packetId = packetId % 65535 + 1;
                out.writeShort(packetId);
            }
            out.writeShort(name.length);
            out.write(name);
            out.write(rest);
            write(head, body.toByteArray());
        } catch (IOException error) {
            hangUp(); // the reading thread reports the error
        }
    }

    private synchronized void write(int head, byte[] body) throws IOException {
        ByteArrayOutputStream packet = new ByteArrayOutputStream(body.length + 5);
        packet.write(head);
        int left = body.length;
        for (; left > 127; left >>>= 7) {
            packet.write(left & 127 | 128);
        }
        packet.write(left);
        packet.write(body);
        writingSince = System.nanoTime() | 1;
        try {
            socket.getOutputStream().write(packet.toByteArray());
        } finally {
            writingSince = 0;
        }
    }

    private void dial() throws IOException, GeneralSecurityException, SedgeException {
        bare.connect(new InetSocketAddress(config.host, config.port), CONNECT_TIMEOUT_MS);
        bare.setTcpNoDelay(true);
        bare.setSoTimeout(CONNECT_TIMEOUT_MS);
        if (config.tls) {
            SSLSocket secured = (SSLSocket) Authorities.context(config.certificates(), config.certificate)
                    .getSocketFactory().createSocket(bare, config.host, config.port, true);
            SSLParameters parameters = secured.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS"); // check that the certificate is for this host
            secured.setSSLParameters(parameters);
            secured.startHandshake();
            socket = secured;
        }
        reached = true;
    }

    private byte[] connect(String clientId, String password, String willTopic, byte[] will) throws IOException {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(body);
        out.writeUTF("MQTT");
        out.writeByte(4); // MQTT 3.1.1
        out.writeByte(0xc6); // flags: user name, password, will at QoS 0, clean session
        out.writeShort(KEEPALIVE_S);
        out.writeUTF(clientId);
        out.writeUTF(willTopic);
        out.writeShort(will.length);
        out.write(will);
        out.writeUTF(config.device);
        out.writeUTF(password);
        return body.toByteArray();
    }

    /** Reads packets until the connection ends. */
    private void read(String subscription) throws IOException, InterruptedException {
        DataInputStream in = new DataInputStream(new BufferedInputStream(socket.getInputStream(), 1 << 16));
        for (int head = in.read(); head >= 0; head = in.read()) {
            int length = 0;
            int shift = 0;
            int part;
            do {
                part = in.readUnsignedByte();
                length |= (part & 127) << shift;
                shift += 7;
            } while (part > 127 && shift < 28);
            if (part > 127 || length > Frame.MAX_PACKET) {
                throw new IOException("a packet of " + length + " bytes, the limit is " + Frame.MAX_PACKET);
            }
            byte[] body = new byte[length];
            in.readFully(body);
            int kind = head >> 4;
            if (kind == CONNACK) {
                int code = length == 2 ? body[1] & 0xff : 255;
                if (code != 0) {
                    throw new Refused("'" + config.device + "': " + REFUSALS[Math.min(code, REFUSALS.length - 1)]);
                }
                accepted = true;
                socket.setSoTimeout(SILENCE_MS);
                subscribe(subscription);
                events.up();
            } else if (kind == SUBACK && length > 2 && body[2] < 0) {
                throw new Refused("a subscription: Unspecified error");
            } else if (kind == PUBLISH) {
                published(head, body);
            }
        }
    }

    private void published(int head, byte[] body) throws IOException, InterruptedException {
        int name = body.length < 2 ? body.length : (body[0] & 0xff) << 8 | body[1] & 0xff;
        // Skip the packet id, which is present if the broker chose a QoS other than 0.
        int from = 2 + name + ((head & 6) == 0 ? 0 : 2);
        if (from > body.length) {
            throw new IOException("a message that ends within its topic");
        }
        String topic = new String(body, 2, name, StandardCharsets.UTF_8);
        events.received(topic, Arrays.copyOfRange(body, from, body.length));
    }
}
