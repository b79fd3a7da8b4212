package org.sedge.edge;

import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.host.Link;
import org.sedge.edge.wire.Agreement;
import org.sedge.edge.wire.DeviceKeys;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Messages.Join;
import org.sedge.edge.wire.Messages.Joined;
import org.sedge.edge.wire.Topics;

import org.jspecify.annotations.Nullable;

import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Asks to join a fleet with a token, and repeats the request until it is answered (protocol/spec/enrolment.md, E9 to
 * E13).
 */
public final class Joining implements Link.Owner {
    private static final double FIRST_S = 1;
    private static final double LAST_S = 30;
    private static final long LOOK_MILLIS = 100;

    private final JoinToken token;
    private final String name;
    private final Agreement.Pair pair;
    private final Agreement agreement;
    private final DeviceKeys keys;
    private final BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>(16);
    private final Link link;
    private final String upTopic;
    private final String downTopic;
    private double askAt = Double.NaN;
    private double againS = FIRST_S;
    private long sent;
    private @Nullable Joined answer;
    private @Nullable String unknown;

    /**
     * Prepares to join with the device's key pair. The caller keeps the pair until the device has joined, so that an
     * interrupted join can continue.
     *
     * @throws ConfigError if the token or the id is invalid
     */
    public Joining(JoinToken token, String name, Agreement.Pair pair) throws SedgeException {
        AgentConfig account = token.account;
        this.token = token;
        this.name = token.device.isEmpty() ? name : token.device;
        this.pair = pair;
        try {
            agreement = new Agreement(pair, token.point, account.fleet, account.device);
        } catch (FrameError error) {
            throw new ConfigError("join text: " + error.getMessage());
        }
        configured(this.name);
        keys = new DeviceKeys(account.secret());
        upTopic = Topics.up(account.fleet, account.device);
        downTopic = Topics.down(account.fleet, account.device);
        link = new Link(account, keys.password, upTopic, downTopic, this, new SecureRandom(), tasks);
    }

    /**
     * Asks to join and waits for the decision. Do not call it on an app's main thread.
     *
     * @return the device's configuration, or null if nobody has accepted it within {@code maxMillis}
     * @throws ConfigError if the coordinator refuses the device, or the broker refuses the token
     */
    public @Nullable AgentConfig ask(long maxMillis) throws SedgeException {
        double deadline = Link.now() + maxMillis / 1000.0;
        try {
            while (Link.now() < deadline && unknown == null && (answer == null || answer.state.equals("pending"))) {
                link.keep();
                if (Link.now() >= askAt) {
                    askAt = Link.now() + againS;
                    againS = Math.min(LAST_S, 2 * againS);
                    link.send(upTopic, question());
                }
                Runnable task = tasks.poll(LOOK_MILLIS, TimeUnit.MILLISECONDS);
                if (task != null) {
                    task.run();
                }
            }
        } catch (InterruptedException error) { // the thread's owner is asking it to stop
            Thread.currentThread().interrupt();
        } finally {
            link.close();
        }
        if (unknown != null) {
            throw new ConfigError(unknown + ": the token has expired, was revoked, or belongs to another fleet");
        }
        if (answer == null || answer.state.equals("pending")) {
            return null;
        }
        if (answer.state.equals("refused")) {
            throw new ConfigError(name + " was refused: " + answer.detail);
        }
        AgentConfig joined = configured(answer.device);
        return answer.certificate.length == 0 ? joined : joined.certified(answer.certificate);
    }

    private AgentConfig configured(String device) throws SedgeException {
        AgentConfig account = token.account;
        return new AgentConfig(device, account.fleet, account.url, agreement.secret, account.caPem)
                .with(account.pinned);
    }

    private byte[] question() {
        byte[] body = Join.SCHEMA.empty().with(Join.POINT, pair.point).with(Join.DEVICE, name)
                .with(Join.PROOF, agreement.asks(name)).with(Join.VERSION, "java " + Agent.VERSION).encode();
        return new Frame(Kind.JOIN, body, 1, ++sent, null, 0).seal(upTopic, keys.up, 1);
    }

    @Override
    public byte[] will() {
        return question(); // repeating the request has no effect
    }

    @Override
    public void connected() {
        askAt = Link.now();
        againS = FIRST_S;
    }

    @Override
    public void received(String topic, byte[] payload) {
        try {
            Frame frame = Frame.open(payload, topic, keys.down, Frame.VERSIONS);
            if (frame.kind != Kind.JOINED || !topic.equals(downTopic)) {
                return;
            }
            Joined said = (Joined) frame.message();
            boolean ours = Arrays.equals(said.of, pair.name());
            boolean proved = !said.state.equals("accepted")
                    || MessageDigest.isEqual(said.proof, agreement.answers(said.device));
            if (ours && proved) {
                answer = said;
            }
        } catch (FrameError error) {
            // Ignore frames that do not come from the coordinator.
        }
    }

    @Override
    public void disconnected(String reason) {
        askAt = Double.NaN;
        if (Link.isUnknownAccount(reason) || Link.isRefusedCertificate(reason)) {
            unknown = reason;
        }
    }

    @Override
    public long fleetDevices() {
        return 0;
    }
}
