package org.sedge.edge.host;

import org.sedge.edge.AgentConfig;
import org.sedge.edge.wire.Backoff;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Reconnect;
import org.sedge.edge.wire.Reconnect.Ended;

import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * The device's link to the broker, which opens one connection after another (WIRE.md, 1.2, 1.7 and 1.9).
 *
 * <p>All methods run on the owner's thread unless they say otherwise; a connection's events are passed to it as tasks.
 */
public final class Link {
    private static final Logger LOG = Logger.getLogger("org.sedge.edge");
    /**
     * A connection is dropped if nothing arrives for this long after we sent something. The time doubles with each
     * drop, up to a limit.
     */
    private static final double DEAF_S = 60;
    private static final double DEAF_MAX_S = 3600;
    private static final long CLOSED_CHECK_MS = 200;

    /** Receives the link's events and supplies what a new connection needs. */
    public interface Owner {
        /** Returns the MQTT will for a new connection. */
        byte[] will();

        void connected();

        void received(String topic, byte[] payload);

        void disconnected(String reason);

        /** Returns the number of devices in the fleet, or 0 if the coordinator has not announced it. */
        long fleetDevices();
    }

    private AgentConfig config;
    private String password;
    private final String upTopic;
    private final String downTopic;
    private final Owner owner;
    private final Random random;
    private final BlockingQueue<Runnable> tasks;
    private volatile MqttConnection connection;
    private String clientId;
    private boolean up;
    private boolean heard;
    private volatile boolean closed;
    private double retryAt;
    private final Reconnect reconnect = new Reconnect();
    private volatile boolean worked;
    private double pingAt;
    private double deafAt = Double.NaN;
    private double patience = DEAF_S;

    public Link(AgentConfig config, String password, String upTopic, String downTopic, Owner owner, Random random,
            BlockingQueue<Runnable> tasks) {
        this.config = config;
        this.password = password;
        this.upTopic = upTopic;
        this.downTopic = downTopic;
        this.owner = owner;
        this.random = random;
        this.tasks = tasks;
        clientId = newClientId();
    }

    /** Returns true if a connection was lost because the broker rejects the user name or its password. */
    public static boolean isUnknownAccount(String reason) {
        return reason.contains("Not authorized") || reason.contains("Bad user name or password");
    }

    /** Returns true if a connection was lost because the broker does not accept our certificate. */
    public static boolean isRefusedCertificate(String reason) {
        return reason.contains(MqttConnection.REFUSES_US);
    }

    /** Uses another password, from the next connection on. */
    public void usePassword(String other) {
        password = other;
    }

    /** Uses the certificate of another configuration, from the next connection on. */
    public void useCertificateOf(AgentConfig other) {
        config = other;
    }

    /** Returns a monotonic time in seconds. */
    public static double now() {
        return System.nanoTime() / 1e9;
    }

    /**
     * Maintains the link; call it once a second. It connects when the wait is over, keeps the connection alive, and
     * drops it if nothing arrives.
     */
    public void keep() {
        double now = now();
        if (connection == null && now >= retryAt) {
            Events events = new Events();
            events.mine = MqttConnection.open(config, clientId, password, upTopic, owner.will(), downTopic, events);
            connection = events.mine;
            heard = false;
        } else if (up && now >= deafAt) {
            String reason = config.url + ": heard nothing for " + Math.round(patience) + " s, although we sent data";
            patience = Math.min(2 * patience, DEAF_MAX_S);
            clientId = newClientId();
            connection.hangUp();
            lost(reason, Ended.HEARD);
        } else if (up && now >= pingAt) {
            connection.ping();
            pingAt = now + MqttConnection.KEEPALIVE_S;
        }
    }

    /**
     * Sends one message. If there is no connection, the message is dropped; callers must expect to lose any message.
     */
    public void send(String topic, byte[] payload) {
        if (up) {
            if (Double.isNaN(deafAt) && !heard) {
                deafAt = now() + patience;
            }
            connection.send(topic, payload);
        }
    }

    public void subscribe(String topic) {
        if (up) {
            connection.subscribe(topic);
        }
    }

    public void unsubscribe(String topic) {
        if (up) {
            connection.unsubscribe(topic);
        }
    }

    /**
     * Cuts a connection that accepts no bytes, because the owner's thread would otherwise wait for that connection.
     * Call it from another thread.
     */
    public void cutIfStuck() {
        MqttConnection stuck = connection;
        if (stuck != null && stuck.stuck()) {
            stuck.hangUp();
        }
    }

    /** Closes the connection cleanly, so that the broker does not publish the will. The owner gets no more tasks. */
    public void close() {
        closed = true;
        if (up) {
            connection.close();
        } else if (connection != null) {
            connection.hangUp();
        }
        connection = null;
        up = false;
    }

    private String newClientId() {
        byte[] bits = new byte[16];
        random.nextBytes(bits);
        return config.device + "-" + Hex.encode(bits);
    }

    private void lost(String reason, Ended ended) {
        connection = null;
        up = false;
        deafAt = Double.NaN;
        double now = now();
        double delay = Backoff.jittered(reconnect.longest(ended, now, owner.fleetDevices()), random);
        retryAt = now + delay;
        LOG.log(reconnect.isNews(reason, now) ? Level.WARNING : Level.FINE,
                reason + "; next try in " + Math.round(delay) + " s");
        owner.disconnected(reason);
    }

    /** Passes a connection's events to the owner's thread. */
    private final class Events implements MqttConnection.Events {
        private MqttConnection mine;

        /** Waits for room in the queue. Drops the event once the link is closed. */
        private void hand(Event event) throws InterruptedException {
            boolean handed = false;
            while (!handed && !closed) {
                handed = tasks.offer(event, CLOSED_CHECK_MS, TimeUnit.MILLISECONDS);
            }
        }

        /** An event of one connection. It is ignored if the link has switched to another connection in the meantime. */
        private abstract class Event implements Runnable {
            abstract void happen();

            @Override
            public void run() {
                if (mine == connection) {
                    happen();
                }
            }
        }

        @Override
        public void up() throws InterruptedException {
            hand(new Event() {
                @Override
                void happen() {
                    up = true;
                    worked = true;
                    pingAt = now() + MqttConnection.KEEPALIVE_S;
                    LOG.info("connected to " + config.url);
                    owner.connected();
                }
            });
        }

        @Override
        public void received(final String topic, final byte[] payload) throws InterruptedException {
            hand(new Event() {
                @Override
                void happen() {
                    heard = true;
                    deafAt = Double.NaN;
                    patience = DEAF_S;
                    owner.received(topic, payload);
                }
            });
        }

        @Override
        public void down(final String reason, final Ended ended) throws InterruptedException {
            hand(new Event() {
                @Override
                void happen() {
                    lost(reason, heard ? Ended.HEARD : ended);
                }
            });
        }

        @Override
        public boolean worked() {
            return worked;
        }
    }
}
