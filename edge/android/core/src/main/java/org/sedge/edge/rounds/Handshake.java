package org.sedge.edge.rounds;

import org.sedge.edge.wire.Backoff;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Messages.Goodbye;
import org.sedge.edge.wire.Messages.Hello;
import org.sedge.edge.wire.Messages.Welcome;
import org.sedge.edge.wire.Peer;

import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Deque;
import java.util.Random;
import java.util.logging.Level;

/** Sends a hello on each connection, and repeats it until the coordinator welcomes the device. */
final class Handshake {
    /**
     * Warn after this many unanswered hellos, which takes about 20 seconds. A running coordinator answers much sooner.
     */
    private static final int WARN_AFTER_HELLOS = 6;
    /**
     * The minimum time between two warnings of a kind that anyone who may publish on our topic can trigger, so that
     * nobody can fill the log.
     */
    private static final double WARN_EVERY_S = 3600;
    /**
     * The number of hints to answer within {@link #HINTS_S} seconds. It is limited because a hint has no MAC, so anyone
     * can forge it.
     */
    private static final int HINTS = 3;
    private static final double HINTS_S = 180;
    /** Devices spread their answers to a hint so that about this many hellos arrive per second. */
    private static final double HELLOS_A_SECOND = 200;
    private static final DateTimeFormatter START_TIME =
            DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss 'UTC'").withZone(ZoneOffset.UTC);
    /** The prefix of the nonce in a hello from the command {@code doctor}. */
    private static final byte[] DOCTOR = {'d', 'o', 'c', 't', 'o', 'r', 0, 0};

    private Hello hello;
    private final Peer peer;
    private final Random random;
    private byte[] nonce = new byte[16];
    private double due = Double.NaN;
    private int attempt;
    private boolean everWelcomed;
    private long fleetDevices; // from the last welcome; 0 if unknown
    private double warnAt = Double.NEGATIVE_INFINITY;
    private final Deque<Double> hinted = new ArrayDeque<>(); // the times at which recent hints were or will be answered
    private boolean mayWarn = true; // about another process under our name; at most once per connection

    Handshake(Hello hello, Peer peer, Random random) {
        this.hello = hello;
        this.peer = peer;
        this.random = random;
    }

    /** Returns true if any hello has been answered with a welcome since the agent started. */
    boolean everWelcomed() {
        return everWelcomed;
    }

    /** Returns the number of devices in the fleet, or 0 if the coordinator has not announced it. */
    long fleetDevices() {
        return fleetDevices;
    }

    /** Returns true if this connection's hello has been answered with a welcome. */
    boolean welcomed() {
        return Double.isNaN(due);
    }

    /** Begins a session. Returns its goodbye, which the broker publishes if the connection is lost. */
    byte[] will() {
        nonce = new byte[16];
        random.nextBytes(nonce);
        peer.awaited = nonce;
        return goodbye();
    }

    byte[] goodbye() {
        return peer.seal(Kind.GOODBYE, Goodbye.SCHEMA.empty().with(Goodbye.NONCE, nonce), null);
    }

    /**
     * Makes a hello due at {@code now}, for example because the link has just been established, or because the
     * coordinator has restarted and knows no devices.
     */
    void begin(double now) {
        due = now;
        attempt = 0;
        mayWarn = true;
    }

    /**
     * Handles a hint, with which the coordinator asks all devices of a shard for a hello. The hello becomes due after a
     * random delay, or later still if too many hints have been answered recently.
     */
    void hinted(double now) {
        if (!welcomed()) { // a hello is already due
            return;
        }
        double at = now + random.nextDouble() * Math.max(1, fleetDevices) / HELLOS_A_SECOND;
        if (hinted.size() == HINTS) {
            at = Math.max(at, hinted.remove() + HINTS_S);
        }
        hinted.add(at);
        begin(at);
    }

    /**
     * Records why the device is currently not working, or "" if it is. A change is announced in another hello, unless
     * only numbers in the reason have changed.
     */
    void waits(String reason, double now, Effects effects) {
        String why = Declines.detail(reason);
        if (!withoutNumbers(why).equals(withoutNumbers(hello.waits))) {
            hello = hello.with(Hello.WAITS, why);
            begin(now);
            effects.note(Level.INFO, why.isEmpty() ? "continuing" : "waiting: " + why);
        }
    }

    private static String withoutNumbers(String reason) {
        return reason.replaceAll("[0-9]+(?:[.,][0-9]+)*", "#");
    }

    /** Sets the name of the settings in force, which later hellos will contain. */
    void follows(byte[] settings) {
        hello = hello.with(Hello.SETTINGS, settings);
    }

    /** Returns true if the device has a certificate that the coordinator renews. */
    boolean isCertified() {
        return hello.certificate.length > 0;
    }

    /** Announces in another hello that the device now has the certificate with this name. */
    void certified(byte[] certificate, double now) {
        hello = hello.with(Hello.CERTIFICATE, certificate);
        begin(now);
    }

    /** Returns true if a welcome answers this connection's hello. */
    boolean isAnswer(Welcome message) {
        return Arrays.equals(message.nonce, nonce);
    }

    double timer() {
        return due;
    }

    /**
     * Sends the hello if it is due.
     *
     * @param runs the runs whose models the device keeps
     */
    void poll(double now, Collection<String> runs, Effects effects) {
        if (!(now >= due)) {
            return;
        }
        due = now + Backoff.SILENCE_S + Backoff.after(attempt, random);
        attempt++;
        effects.send(peer.topic, peer.seal(Kind.HELLO, hello.with(Hello.NONCE, nonce)
                .with(Hello.VERSIONS, peer.versions).with(Hello.HOLDS, new ArrayList<>(runs)), null));
        if (attempt == WARN_AFTER_HELLOS) {
            effects.note(Level.WARNING, "no coordinator answers on " + peer.topic + ": is one running that speaks protocol version "
                    + peer.versions.get(0)
                    + (everWelcomed ? "?" : ", and does the broker know this connection as this device, by its user "
                            + "name or certificate?"));
        }
    }

    /**
     * Handles a welcome, which answers our hello or announces that the coordinator has started. Returns true if it is
     * the first answer to this connection's hello.
     */
    boolean welcome(Welcome message, double now, Effects effects) {
        byte[] answered = message.nonce;
        fleetDevices = message.devices;
        if (Arrays.equals(answered, new byte[16])) {
            begin(now);
            return false;
        }
        if (!isAnswer(message)) { // a late answer, or an answer to a second process under our name
            boolean doctors = Arrays.equals(Arrays.copyOf(answered, DOCTOR.length), DOCTOR);
            if (!doctors && mayWarn && welcomed()) {
                mayWarn = false;
                effects.note(Level.WARNING, "the coordinator welcomes another process under this device's name: is a "
                        + "copy of its state in use elsewhere? Only one of them can take part");
            }
            return false;
        }
        boolean first = !welcomed();
        due = Double.NaN;
        everWelcomed = true;
        peer.awaited = null;
        if (first) {
            effects.note(Level.INFO, "welcomed by coordinator " + message.version);
        }
        return first;
    }

    /**
     * Formats a start count as a date and time. A start count is at least the Unix time of that start according to the
     * sender's clock.
     */
    private static String startTime(long incarnation) {
        return START_TIME.format(Instant.ofEpochSecond(incarnation));
    }

    /**
     * Handles a frame that the replay window refused. Warns if it may come from a coordinator that is waiting for an
     * answer.
     */
    void replayed(Frame frame, double now, Effects effects) {
        long newest = peer.window.incarnation();
        // A frame repeated within one start comes from the broker and is harmless.
        if (frame.incarnation < newest && now >= warnAt) {
            warnAt = now + WARN_EVERY_S;
            effects.note(Level.WARNING, "ignored the coordinator: its start at " + startTime(frame.incarnation)
                    + " by its clock is before the one at " + startTime(newest) + " that was heard earlier. If its state "
                    + "was wiped, restart this agent; if not, somebody is replaying old frames");
        }
    }
}
