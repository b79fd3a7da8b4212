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

/** Sends each connection's hello, and repeats it until the coordinator welcomes it. */
final class Handshake {
    /** A coordinator that receives hellos answers well before this many have been sent, which takes about 20 seconds. */
    private static final int WARN_AFTER_HELLOS = 6;
    /** Other parties that can publish on our topic must not be able to fill the log. */
    private static final double WARN_EVERY_S = 3600;
    /** A hint has no MAC: this many are answered at once, then no more for {@link #HINTS_S} seconds. */
    private static final int HINTS = 3;
    private static final double HINTS_S = 180;
    /** Roughly how many hellos of a fleet arrive per second after a hint. */
    private static final double HELLOS_A_SECOND = 200;
    private static final DateTimeFormatter START_TIME =
            DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss 'UTC'").withZone(ZoneOffset.UTC);
    /** The prefix of the nonce in a doctor's hello. */
    private static final byte[] DOCTOR = {'d', 'o', 'c', 't', 'o', 'r', 0, 0};

    private Hello hello;
    private final Peer peer;
    private final Random random;
    private byte[] nonce = new byte[16];
    private double due = Double.NaN;
    private int attempt;
    private boolean everWelcomed;
    private long fleetDevices; // from the last welcome; 0: unknown
    private double warnAt = Double.NEGATIVE_INFINITY;
    private final Deque<Double> hinted = new ArrayDeque<>(); // when the last hints were answered, or will be
    private boolean mayWarn = true; // of another process under our name; once per connection

    Handshake(Hello hello, Peer peer, Random random) {
        this.hello = hello;
        this.peer = peer;
        this.random = random;
    }

    /** Whether any hello since the agent started was welcomed. */
    boolean everWelcomed() {
        return everWelcomed;
    }

    /** The number of devices in the fleet; 0: the coordinator has not announced it. */
    long fleetDevices() {
        return fleetDevices;
    }

    /** Whether this connection's hello has been welcomed. */
    boolean welcomed() {
        return Double.isNaN(due);
    }

    /** The goodbye that the broker publishes when it loses us; begins a session. */
    byte[] will() {
        nonce = new byte[16];
        random.nextBytes(nonce);
        peer.awaited = nonce;
        return goodbye();
    }

    byte[] goodbye() {
        return peer.seal(Kind.GOODBYE, Goodbye.SCHEMA.empty().with(Goodbye.NONCE, nonce), null);
    }

    /** Says hello: the link is up, or a coordinator has started and knows nobody. */
    void begin(double now) {
        due = now;
        attempt = 0;
        mayWarn = true;
    }

    /** The coordinator asks a shard's devices for a hello: says it soon, or once hints are answered again. */
    void hinted(double now) {
        if (!welcomed()) { // one is on its way already
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
     * Why the device does no work now, empty if it does: when that changes, says so in another hello. A change of
     * numbers alone does not count.
     */
    void waits(String reason, double now, Effects effects) {
        String why = Declines.cut(reason);
        if (!withoutNumbers(why).equals(withoutNumbers(hello.waits))) {
            hello = hello.with(Hello.WAITS, why);
            begin(now);
            effects.note(Level.INFO, why.isEmpty() ? "continuing" : "waiting: " + why);
        }
    }

    private static String withoutNumbers(String reason) {
        return reason.replaceAll("[0-9]+(?:[.,][0-9]+)*", "#");
    }

    /** The name of the settings that the device has taken, for its hellos from now on. */
    void follows(byte[] settings) {
        hello = hello.with(Hello.SETTINGS, settings);
    }

    /** Whether a welcome answers this connection's hello. */
    boolean isAnswer(Welcome message) {
        return Arrays.equals(message.nonce, nonce);
    }

    double timer() {
        return due;
    }

    /** @param runs the runs whose models the device keeps */
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

    /** Handles the answer, or the welcome with which a coordinator announces its start. Returns true if newly welcomed. */
    boolean welcome(Welcome message, double now, Effects effects) {
        byte[] answered = message.nonce;
        fleetDevices = message.devices;
        if (Arrays.equals(answered, new byte[16])) {
            begin(now);
            return false;
        }
        if (!isAnswer(message)) { // a late answer, or one to a second process under our name
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

    /** The time of a start by the sender's clock, for people: a start count is at least its Unix seconds. */
    private static String startTime(long incarnation) {
        return START_TIME.format(Instant.ofEpochSecond(incarnation));
    }

    /** A frame that the replay window refused: warns if a coordinator may be waiting for an answer. */
    void replayed(Frame frame, double now, Effects effects) {
        long newest = peer.window.incarnation();
        // A repeat within one start comes from the broker and is harmless.
        if (frame.incarnation < newest && now >= warnAt) {
            warnAt = now + WARN_EVERY_S;
            effects.note(Level.WARNING, "ignored the coordinator: its start at " + startTime(frame.incarnation)
                    + " by its clock is before the one at " + startTime(newest) + " that was heard earlier. If its state "
                    + "was wiped, restart this agent; if not, somebody is replaying old frames");
        }
    }
}
