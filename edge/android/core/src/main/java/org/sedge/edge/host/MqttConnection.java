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
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.Arrays;

import javax.net.ssl.SSLException;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;

/**
 * One connection to the broker in MQTT 3.1.1, as far as the protocol uses it: a clean session, a will, QoS 0.
 *
 * <p>That takes ten packet types. The only Java client in Debian 12 needs two further libraries for the others.
 */
public final class MqttConnection {
    public static final int KEEPALIVE_S = 30;
    private static final int CONNECT_TIMEOUT_MS = 10_000;
    /** A broker that sends neither a message nor an answer to a ping for this long is gone. */
    private static final int SILENCE_MS = 4 * KEEPALIVE_S * 1000;
    private static final int CLOSE_MS = 2000;
    private static final long STUCK_MS = 2000;
    private static final int CONNECT = 0x10;
    private static final int CONNACK = 2;
    /** The meanings of a CONNACK's codes; the last one also stands for all others. */
    private static final String[] REFUSALS = {"Success", "Unsupported protocol version", "Client identifier not valid",
        "Server unavailable", "Bad user name or password", "Not authorized", "Unspecified error"};
    private static final int PUBLISH = 3;
    private static final int SUBSCRIBE = 0x82;
    private static final int SUBACK = 9;
    private static final int UNSUBSCRIBE = 0xa2;
    private static final int PING = 0xc0;
    private static final int DISCONNECT = 0xe0;

    /** A connection's events; called on a separate thread. */
    public interface Events {
        /** The broker has accepted it. */
        void up() throws InterruptedException;

        void received(String topic, byte[] payload) throws InterruptedException;

        /** The connection has ended, for this reason; the last call. */
        void down(String reason, Ended ended) throws InterruptedException;

        /** Whether the broker has ever accepted a connection. */
        boolean worked();
    }

    /** The broker refused something. */
    @SuppressWarnings("serial")
    private static final class Refused extends IOException {
        Refused(String what) {
            super(what);
        }
    }

    private final AgentConfig config;
    private final Events events;
    private final Socket bare = new Socket();
    private Socket socket = bare;
    /** Whether the broker's machine has answered, and whether the broker has accepted us. */
    private boolean reached;
    private boolean accepted;
    private int packetId;
    private volatile long writingSince; // of System.nanoTime(); 0: no write is under way
    private Thread thread;

    private MqttConnection(AgentConfig config, Events events) {
        this.config = config;
        this.events = events;
    }

    /** Starts to connect, and subscribes to one topic. */
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
                } catch (Exception | Error error) { // even out of memory, the owner has to learn of the end
                    reason = connection.said(error);
                    ended = connection.ended(error);
                }
                connection.hangUp();
                try {
                    events.down(reason, ended);
                } catch (InterruptedException closed) {
                    interrupt(); // nobody is waiting for it any more
                }
            }
        };
        connection.thread.setDaemon(true);
        connection.thread.start();
        return connection;
    }

    /** Why the connection ended, in the Python agent's words as far as both systems share them. */
    private String said(Throwable error) {
        if (error instanceof Refused) {
            return config.url + " refused " + error.getMessage();
        }
        if (!reached || error instanceof SSLException) {
            return "cannot reach " + config.url + ": " + cause(error);
        }
        if (error instanceof SocketTimeoutException) {
            return config.url + (accepted ? ": Keep alive timeout" : " accepted the connection but did not answer");
        }
        return error instanceof EOFException || error instanceof SocketException
                ? closedBy() : config.url + ": " + cause(error);
    }

    private String closedBy() {
        String hint = accepted || config.tls || events.worked() ? "" : " (does it expect TLS, mqtts?)";
        return config.url + ": the broker closed the connection" + hint;
    }

    /** What the end of a connection without a message reveals about the network. */
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

    /** Sends one message; it is dropped if the link is down, as any message may be. */
    public void send(String topic, byte[] payload) {
        attempt(PUBLISH << 4, topic.getBytes(StandardCharsets.UTF_8), payload, false);
    }

    public void subscribe(String topic) {
        attempt(SUBSCRIBE, topic.getBytes(StandardCharsets.UTF_8), new byte[1], true);
    }

    public void unsubscribe(String topic) {
        attempt(UNSUBSCRIBE, topic.getBytes(StandardCharsets.UTF_8), new byte[0], true);
    }

    /** Keeps the connection alive. */
    public void ping() {
        try {
            write(PING, new byte[0]);
        } catch (IOException error) {
            hangUp();
        }
    }

    /** Closes cleanly, so that the will is not sent; everything sent before has then arrived. */
    public void close() {
        try {
            write(DISCONNECT, new byte[0]);
            thread.join(CLOSE_MS); // until the broker has read everything and hangs up
        } catch (IOException error) {
            hangUp();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        hangUp();
    }

    /** Whether a write has been waiting for longer than a working broker would make it wait. */
    public boolean stuck() {
        long since = writingSince;
        return since != 0 && System.nanoTime() - since > STUCK_MS * 1_000_000;
    }

    /** Ends the connection at once; the broker sends the will. Any thread may. */
    public void hangUp() {
        try {
            bare.close();
            socket.close();
        } catch (IOException error) {
            return; // it is closed anyway
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
            hangUp(); // the reading thread reports it
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
            SSLSocket secured = (SSLSocket) Authorities.context(config.certificates()).getSocketFactory()
                    .createSocket(bare, config.host, config.port, true);
            SSLParameters parameters = secured.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS"); // the certificate must name the host
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
        out.writeByte(0xc6); // user name, password, will at QoS 0, clean session
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
        int from = 2 + name + ((head & 6) == 0 ? 0 : 2); // a packet id, if the broker chose another QoS
        if (from > body.length) {
            throw new IOException("a message that ends within its topic");
        }
        String topic = new String(body, 2, name, StandardCharsets.UTF_8);
        events.received(topic, Arrays.copyOfRange(body, from, body.length));
    }
}
