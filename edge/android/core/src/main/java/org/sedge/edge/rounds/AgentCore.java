package org.sedge.edge.rounds;

import org.sedge.edge.AgentListener;
import org.sedge.edge.Limits;
import org.sedge.edge.SedgeException.BodyError;
import org.sedge.edge.SedgeException.BrokenSteps;
import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.SedgeException.RemoteError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.SedgeException.TooManyRuns;
import org.sedge.edge.SedgeException;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.DurableBytes;
import org.sedge.edge.jobs.GlobalModel;
import org.sedge.edge.jobs.Outcome;
import org.sedge.edge.rounds.State.Pending;
import org.sedge.edge.rounds.State.TakenPolicy;
import org.sedge.edge.wire.Backoff;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Messages.Busy;
import org.sedge.edge.wire.Messages.Cancel;
import org.sedge.edge.wire.Messages.Committed;
import org.sedge.edge.wire.Messages.Have;
import org.sedge.edge.wire.Messages.Hello;
import org.sedge.edge.wire.Messages.Joined;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Refusal;
import org.sedge.edge.wire.Messages.Reject;
import org.sedge.edge.wire.Messages.Renew;
import org.sedge.edge.wire.Messages.Welcome;
import org.sedge.edge.wire.Peer;
import org.sedge.edge.wire.PinnedKeys;
import org.sedge.edge.wire.Refusals;
import org.sedge.edge.wire.Struct;
import org.sedge.edge.wire.Topics;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Random;
import java.util.Set;
import java.util.logging.Level;

/**
 * The core of a device's agent. It handles messages, requests effects from the shell, and keeps its state on disk. It
 * is single-threaded.
 *
 * <pre>
 * order    it is accepted, and committed before anything else happens
 *   -> fetching   the blobs that it names and that are not on disk yet
 *   -> working    one job runs at a time; its start is committed
 *   -> outbox     the outcome is committed: own model, residual, and the update to send
 *   -> uploading  the update is offered again after every reconnection
 *   -> receipt    the update is deleted only now
 * </pre>
 *
 * <p>Every arrow is one commit, so a crash repeats at most the step that it interrupted. {@code now} is monotonic
 * seconds.
 */
public final class AgentCore {
    private final String down;
    private final String hint;
    private final Blobs blobs;
    private final StateStore store;
    private final Peer peer;
    private final Keyring keyring;
    private final String version;
    private final Handshake handshake;
    private final Budget budget;
    private final BlobLimits limits;
    private final Trust trust;
    private final Fetches fetches;
    private final Outbox outbox;
    private final Declines declines;
    private final TakenSettings settings;
    private final Traffic effects;
    private final DiskWaits waits;
    private final AgentListener listener;
    private boolean connected;
    private Order working;
    private Set<String> collected;
    private double collectAt = Double.NEGATIVE_INFINITY;

    /**
     * Loads the device's durable state and begins a new start of the device.
     *
     * @param clockS Unix seconds; the clock need not be right
     * @param most the limits on the device's work, or null for no limits
     * @param pinned unless this is empty, every order needs a policy signed by one of these keys
     */
    public AgentCore(String fleet, String device, Keyring keys, Hello hello, Blobs blobs, DurableBytes journal,
            Random random, long clockS, Limits most, PinnedKeys pinned, Effects effects, AgentListener listener)
            throws StorageError {
        this.blobs = blobs;
        this.listener = listener;
        this.effects = new Traffic(effects);
        waits = new DiskWaits(effects);
        store = new StateStore(journal, blobs);
        keyring = keys;
        version = hello.version;
        store.start(clockS, keys.base.fingerprint());
        budget = new Budget(most, store.state().spent, clockS);
        store.spends(budget);
        down = Topics.down(fleet, device);
        hint = Topics.hint(fleet, device);
        peer = new Peer(Topics.up(fleet, device), keys.keys(), store.state().incarnation, store.state().coordinator);
        handshake = new Handshake(hello, peer, random);
        settings = new TakenSettings(most, store, handshake, budget, blobs);
        settings.begin();
        limits = new BlobLimits(blobs);
        trust = new Trust(pinned, limits, store, budget);
        fetches = new Fetches(fleet, blobs, peer, random, limits);
        outbox = new Outbox(store, blobs, peer, random);
        declines = new Declines(peer, this.effects, listener);
    }

    /** Allows blobs to be downloaded over HTTP from now on. */
    public void allow(Downloader downloader) {
        fetches.places.allow(downloader);
    }

    /** Returns true if the coordinator has answered this connection's hello with a welcome. */
    public boolean welcomed() {
        return connected && handshake.welcomed();
    }

    /** Returns the number of devices in the fleet, or 0 if the coordinator has not announced it. */
    public long fleetDevices() {
        return handshake.fleetDevices();
    }

    /** Returns true if there are neither orders to work on nor updates to send. */
    public boolean idle() {
        return store.state().orders.isEmpty() && store.state().outbox.isEmpty();
    }

    /** Returns the topic to which the device publishes. Its MQTT will has the same topic. */
    public String upTopic() {
        return peer.topic;
    }

    /** Returns the topic of messages that are meant for this device only. */
    public String downTopic() {
        return down;
    }

    /** Begins a new session. Returns the payload for the MQTT will of its connection. */
    public byte[] will() {
        return handshake.will();
    }

    /** Tells the coordinator that the device is disconnecting on purpose. */
    public void goodbye() {
        effects.send(peer.topic, handshake.goodbye());
    }

    /** Call this when the link has been established. */
    public void connected(double now, int maxPacketBytes) {
        connected = true;
        effects.subscribe(hint);
        handshake.begin(now);
        outbox.connected(now, maxPacketBytes);
        fetches.connected(now, effects);
        poll(now);
    }

    /**
     * Switches to the device's other set of keys after the broker has refused the current set. Returns the other set's
     * password, or null if there is no other set.
     */
    public String otherPassword() {
        if (!keyring.turn()) {
            return null;
        }
        peer.change(keyring.keys());
        return keyring.keys().password;
    }

    /** Call this when the link has been lost. A running job continues without it. */
    public void disconnected() {
        connected = false;
        fetches.disconnected();
        outbox.disconnected();
    }

    /** Returns the time at which {@link #poll} is next due, or NaN if nothing is due until the next event. */
    public double timer() {
        double due = Backoff.earlier(outbox.timer(), connected ? handshake.timer() : Double.NaN);
        return Backoff.earlier(due, waits.timer(fetches.timer()));
    }

    /** Does what is due now. If the disk is full, new work must wait, but uploads continue because they make room. */
    public void poll(double now) {
        budget.passed(now);
        say(now);
        outbox.poll(now, effects);
        if (!waits.disk(now)) {
            work(now);
            say(now);
        }
    }

    /** Sends a hello if one is due, for example to announce why the device waits, or that it continues. */
    private void say(double now) {
        boolean disk = working != null || !waits.why().isEmpty();
        String limit = budget.closed();
        handshake.waits(!limit.isEmpty() ? limit : disk ? waits.why() : fetches.refused(), now, effects);
        if (connected) {
            handshake.poll(now, store.state().runs.keySet(), effects);
        }
    }

    /** Downloads blobs for the orders, and begins a job. */
    private void work(double now) {
        try {
            if (waits.untried()) {
                store.probe();
            }
            waits.works(!store.state().orders.isEmpty());
            if (budget.owes()) {
                store.probe();
            }
        } catch (StorageError error) {
            waits.begin(error, now);
            return;
        }
        collect(now);
        try {
            refuseImpossible();
            boolean open = budget.closed().isEmpty();
            fetches.sync(open ? store.state().orders.values() : Collections.<Order>emptyList(), now, effects);
        } catch (StorageError error) { // a download without room must not hold back a job that needs no room
            waits.begin(error, now);
        }
        try {
            nextJob(now);
        } catch (StorageError error) {
            waits.begin(error, now);
        }
        fetches.poll(now, effects);
    }

    /** Handles a message from the broker. Malformed messages have no effect. */
    public void receive(String topic, byte[] payload, double now) {
        effects.received(payload);
        budget.passed(now);
        budget.received(payload.length);
        try {
            if (topic.equals(hint)) {
                handshake.hinted(now);
                poll(now);
                return;
            }
            if (!topic.equals(down)) {
                chunk(Frame.open(payload, topic, null, Frame.VERSIONS), now);
                return;
            }
            Peer.Opened opened = peer.open(payload, topic);
            if (opened.replayed) {
                handshake.replayed(opened.frame, now, effects);
                return;
            }
            if (opened.message == null) {
                chunk(opened.frame, now);
                return;
            }
            boolean isNew = opened.frame.incarnation != store.state().coordinator;
            if (isNew) { // a coordinator that has just started knows no devices, and its request for hellos may be lost
                handshake.begin(now);
            }
            if (opened.frame.kind == Kind.WELCOME) { // handled even if the disk is full, because our hellos report that
                welcome((Welcome) opened.message, now);
                keyring.welcomed();
            }
            if (isNew && !budget.start()) {
                return;
            }
            store.heardCoordinator(opened.frame.incarnation);
            if (isNew || opened.frame.kind == Kind.WELCOME || opened.frame.kind == Kind.ORDER) {
                outbox.woken(now);
                fetches.woken(now);
            }
            boolean overtaken = opened.frame.seq < peer.window.top();
            if (opened.frame.kind == Kind.ORDER && (overtaken || !handshake.everWelcomed())) {
                // The newer message may have been the order's receipt. Before the first welcome we cannot know whether
                // there was a newer one.
                effects.note(Level.INFO, "dropped an order that a newer message overtook; it may be sent again");
                return;
            }
            message(opened.frame, opened.message, now);
            poll(now);
        } catch (RemoteError error) {
            effects.note(Level.INFO, "dropped a frame on " + topic + ": " + error.getMessage());
            if (error instanceof BodyError && handshake.everWelcomed()) {
                declines.unreadable((BodyError) error);
            }
        } catch (StorageError error) {
            if (!waits.disk(now)) { // log the error only once for all the chunks in flight
                waits.begin(error, now);
                say(now);
            }
        }
    }

    /** Call this when a chunk of a span has arrived over HTTP. The core checks the chunk. */
    public void fetched(int number, int index, byte[] data, double now) {
        effects.received(data);
        budget.passed(now);
        budget.received(data.length);
        try {
            if (fetches.fetched(number, index, data, now, effects)) {
                poll(now);
            }
        } catch (StorageError error) {
            fetches.places.halt();
            waits.begin(error, now);
            say(now);
        }
    }

    /**
     * Call this when a span has ended.
     *
     * @param error why the span failed; null if it is complete
     */
    public void fetchEnded(int number, String error, double now) {
        fetches.fetchEnded(number, error, now, effects);
        poll(now);
    }

    /** Returns true if the running job has used up the day's training time. Any thread may call it. */
    public boolean mustStop(double now) {
        return budget.mustStop(now);
    }

    private Order jobEnded() {
        Order order = working;
        working = null;
        collected = null;
        budget.works(false);
        return order;
    }

    /**
     * Call this when the current job is done. Commits its outcome and offers the update. If a newer order has arrived
     * in the meantime, the update is late but still sent.
     */
    public void finished(Outcome outcome, double now) {
        Order order = jobEnded();
        try {
            if (store.stillWants(order)) {
                store.finish(order, outcome);
                fetches.places.received -= outcome.report.httpBytes;
            }
        } catch (StorageError error) { // the order stays, and the job will be repeated
            waits.beginJob(error, now);
            say(now);
            return;
        }
        waits.jobDone();
        poll(now);
    }

    /**
     * Call this when the current job has failed. Declines its order, unless the cause is a disk error, after which the
     * job is retried.
     */
    public void failed(SedgeException error, double now) {
        Order order = jobEnded();
        if (error instanceof StorageError) {
            waits.beginJob((StorageError) error, now);
            say(now);
            return;
        }
        waits.jobDone();
        effects.note(Level.SEVERE, GlobalModel.where(order) + ": " + error.getMessage());
        Order current = store.state().orders.get(order.run);
        try {
            if (current != null && StateStore.repeats(current, order)) {
                if (error instanceof BrokenSteps) { // without the steps, downloading the whole model may still work
                    store.strikeSteps(current);
                    effects.note(Level.WARNING, GlobalModel.where(order) + ": fetching the whole model instead");
                } else {
                    store.decline(order);
                    declines.send(order.run, order.round, error);
                }
            }
        } catch (StorageError disk) {
            waits.begin(disk, now);
            say(now);
            return;
        }
        poll(now);
    }

    /**
     * Call this when the current job was stopped on purpose. Its order stays.
     *
     * @param checkpoint the blob from which the job will continue; null if it must start over
     */
    public void interrupted(byte[] checkpoint) {
        Order order = jobEnded();
        try {
            store.interrupt(order, checkpoint);
        } catch (StorageError error) {
            effects.note(Level.SEVERE, error.getMessage());
        }
    }

    /**
     * Call this when the shell has stored the certificate with this name and will present it to the broker from the
     * next connection on.
     */
    public void certified(byte[] name, double now) {
        handshake.certified(name, now);
    }

    private void message(Frame frame, Struct<?> message, double now) throws RemoteError, StorageError {
        switch (frame.kind) {
            case WELCOME:
                settings.welcomed((Welcome) message, now, effects);
                break;
            case ORDER:
                order((Order) message);
                break;
            case CANCEL:
                cancel((Cancel) message);
                break;
            case HAVE:
                outbox.have(frame.transfer, (Have) message, now);
                break;
            case BUSY:
                outbox.busy(frame.transfer, (Busy) message, now);
                break;
            case COMMITTED:
                Committed committed = (Committed) message;
                receipt(committed.run, committed.round, committed.sha256, null,
                        "update stored by the coordinator" + (committed.late ? " (late)" : ""));
                break;
            case REJECT:
                Reject reject = (Reject) message;
                String why = reject.reason + " " + reject.detail;
                receipt(reject.run, reject.round, reject.sha256, why, "update rejected: " + why);
                break;
            case RENEW:
                Struct<?> answer = keyring.answer(((Renew) message).point, version);
                effects.note(Level.INFO,
                        "renewing the secret; the current one stays valid until the new one is used");
                effects.send(peer.topic, peer.seal(Kind.JOIN, answer, null));
                break;
            case JOINED:
                byte[] der = ((Joined) message).certificate;
                if (der.length == 0 || !handshake.isCertified()) {
                    throw new FrameError("JOINED without a certificate that the device can use");
                }
                effects.keepCertificate(der);
                break;
            case REFUSED:
                Refusal refusal = (Refusal) message;
                effects.note(Level.SEVERE, "the coordinator refuses: " + refusal.reason + ": " + refusal.detail);
                break;
            default:
                throw new FrameError(message.getClass().getSimpleName() + " is not a message for a device");
        }
    }

    private void welcome(Welcome message, double now) throws RemoteError {
        peer.agree(message.versions);
        outbox.limit(message.maxPacket);
        if (handshake.welcome(message, now, effects)) {
            String[] levels = down.split("/");
            listener.joined(levels[2], levels[5]);
        }
    }

    private void order(Order order) throws StorageError {
        String run = order.run;
        long round = order.round;
        Order current = store.state().orders.get(run);
        if (store.pending(run, round) != null) {
            return; // a repeated order; its update is already being offered
        }
        if (current != null && StateStore.repeats(current, order)) {
            store.recut(current, order);
            return;
        }
        String refused = budget.order();
        if (refused != null) {
            declines.beyondLimits(order, refused, budget.tells());
            return;
        }
        String unknown = Abilities.lacking(order);
        if (!unknown.isEmpty()) {
            declines.send(run, round, new BodyError(
                    "ORDER: " + Refusals.unannounced(GlobalModel.where(order), unknown), new byte[0]));
            return;
        }
        TakenPolicy policy;
        try {
            requirePossible(order);
            policy = trust.policyOf(order);
        } catch (RemoteError error) {
            declines.send(order, error);
            return;
        }
        if (store.attemptsExhausted(order)) { // the coordinator has not received our decline
            declines.exhausted(order);
        } else {
            trust.learn(order);
            try {
                String evicted = store.accept(order, policy);
                if (evicted != null) {
                    effects.note(Level.WARNING, "deleted run " + evicted + " and its model: none of the last "
                            + StateStore.MAX_RUNS + " orders was for it");
                }
                effects.began(run);
                effects.note(Level.INFO, GlobalModel.where(order) + ": " + order.task);
            } catch (TooManyRuns error) {
                effects.note(Level.SEVERE, error.getMessage());
                declines.send(run, round, error);
            }
        }
    }

    private void cancel(Cancel message) throws StorageError {
        Order order = store.state().orders.get(message.run);
        long round = message.round;
        if (order != null && (round == 0 || round == order.round)) {
            store.drop(order.run);
            effects.note(Level.INFO, "run " + order.run + ": cancelled: " + message.reason);
        }
    }

    /**
     * Handles the coordinator's final answer to an update.
     *
     * @param rejected why the update was rejected; null if it was accepted
     */
    private void receipt(String run, long round, byte[] sha256, String rejected, String said) throws StorageError {
        Pending waiting = store.pending(run, round);
        if (waiting == null || !Arrays.equals(waiting.blob, sha256)) {
            return;
        }
        store.removeUpdate(waiting);
        waits.jobTried(); // deleting the update may have made room for a waiting job
        effects.note(rejected == null ? Level.INFO : Level.SEVERE, "run " + run + ", round " + round + ": " + said);
        if (rejected == null) {
            long[] bytes = effects.since(run);
            listener.finished(run, (int) round, waiting.metric, waiting.before,
                    waiting.after, bytes[0], bytes[1]);
        } else {
            listener.declined(run, (int) round, rejected);
        }
    }

    private void chunk(Frame frame, double now) throws StorageError, RemoteError {
        if (fetches.chunk(frame, now, effects)) {
            poll(now);
        }
    }

    /** Deletes blobs that are no longer needed. If a file cannot be deleted, everything else continues. */
    private void collect(double now) {
        // Not during a job, which may be writing blobs that the state does not name yet.
        Set<String> needed = store.needed();
        if (working != null || now < collectAt || needed.equals(collected)) {
            return;
        }
        try {
            blobs.collect(needed);
            collected = needed;
        } catch (StorageError error) {
            collectAt = now + DiskWaits.RETRY_S;
            effects.note(Level.SEVERE, error.getMessage());
        }
    }

    /** Begins the job of the oldest order whose blobs are all on disk. */
    private void nextJob(double now) throws StorageError {
        if (working != null || waits.job(now)) {
            return;
        }
        waits.jobTried();
        for (Order order : new ArrayList<>(store.state().orders.values())) {
            if (store.attemptsExhausted(order)) {
                store.refuse(order.run);
                declines.exhausted(order);
            } else if (budget.closed().isEmpty() && fetches.missing(order).isEmpty() && !refuseImpossible(order)) {
                store.begin(order);
                working = order;
                budget.works(true);
                waits.jobBegins();
                listener.training(order.run, (int) order.round);
                effects.start(Resuming.job(order, store, blobs, effects, fetches.places.received));
                return;
            }
        }
    }

    /** Declines each order that the device turns out to be unable to carry out, now that its bundle has arrived. */
    private void refuseImpossible() throws StorageError {
        for (Order order : new ArrayList<>(store.state().orders.values())) {
            refuseImpossible(order);
        }
    }

    /** Declines the order if the device cannot carry it out. Returns true if it was declined. */
    private boolean refuseImpossible(Order order) throws StorageError {
        try {
            requirePossible(order);
            return false;
        } catch (RemoteError error) {
            store.decline(order);
            declines.send(order, error);
            return true;
        }
    }

    /**
     * Checks an order as far as the blobs that have arrived allow.
     *
     * @throws RemoteError if the device cannot carry out the order, or the order is not allowed
     */
    private void requirePossible(Order order) throws RemoteError, StorageError {
        limits.check(order);
        limits.checkLayout(order, store.keptFor(order));
        trust.check(order);
    }
}
