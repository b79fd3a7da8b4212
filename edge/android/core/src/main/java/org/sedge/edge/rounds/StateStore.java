package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.SedgeException.TooManyRuns;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.DurableBytes;
import org.sedge.edge.jobs.GlobalModel;
import org.sedge.edge.jobs.Kept;
import org.sedge.edge.jobs.Outcome;
import org.sedge.edge.rounds.State.Attempt;
import org.sedge.edge.rounds.State.Pending;
import org.sedge.edge.rounds.State.Stopped;
import org.sedge.edge.rounds.State.TakenPolicy;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Step;
import org.sedge.edge.wire.Refusals;
import org.sedge.edge.wire.Schema.Field;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Holds the durable state and makes every change to it. A change that throws {@code StorageError} has no effect. */
public final class StateStore {
    static final int MAX_RUNS = 16;
    /**
     * An order is refused once this many starts of the agent have begun it without finishing it, because the job then
     * evidently crashes the agent.
     */
    static final int MAX_STARTS = 3;
    /** The number of runs whose policy versions are remembered, including runs that the device has given up. */
    private static final int MAX_POLICIES = 64;

    private final DurableBytes journal;
    private final Blobs blobs;
    private State state;
    /** Provides the amounts spent, which every commit records; null to leave them unchanged. */
    private Budget budget;
    /**
     * The blobs that are named by states whose commit failed. Such a state may be on disk nevertheless, and the next
     * start would load it.
     */
    private final Set<String> uncertain = new HashSet<>();
    private String declined;

    StateStore(DurableBytes journal, Blobs blobs) throws StorageError {
        this.journal = journal;
        this.blobs = blobs;
        byte[] saved = journal.load();
        try {
            state = saved == null ? State.SCHEMA.empty() : State.SCHEMA.decode(saved);
        } catch (IllegalArgumentException error) {
            throw new StorageError("journal: damaged, " + error.getMessage() + "; restore the file, or move it away to "
                    + "start over without its contents", error);
        }
    }

    /** Returns the device's start count from a journal. */
    public static long starts(DurableBytes journal) throws StorageError {
        return new StateStore(journal, null).state.incarnation;
    }

    void spends(Budget spending) {
        budget = spending;
    }

    State state() {
        return state;
    }

    /**
     * Commits a new start of the device. If the keys have changed, both start counts are reset, because no old frame
     * has a valid MAC under the new keys.
     */
    void start(long clockS, byte[] key) throws StorageError {
        State begun = state;
        if (state.key.length > 0 && !Arrays.equals(state.key, key)) {
            begun = begun.with(State.INCARNATION, 0L).with(State.COORDINATOR, 0L);
        }
        long incarnation = Frame.nextIncarnation(begun.incarnation, clockS);
        save(begun.with(State.INCARNATION, incarnation).with(State.KEY, key));
    }

    /** Commits the state without changes, to test whether the disk works. */
    void probe() throws StorageError {
        save(state);
    }

    void takeSettings(byte[] coded) throws StorageError {
        save(state.with(State.SETTINGS, coded));
    }

    /**
     * Records signing keys that have been replaced.
     *
     * @param replaced the new public keys, keyed by the ids of the old ones
     */
    void replaceKeys(Map<String, byte[]> replaced) throws StorageError {
        // A replacement never changes, so comparing the ids is enough.
        if (!replaced.keySet().equals(state.replaced.keySet())) {
            save(state.with(State.REPLACED, replaced));
        }
    }

    void heardCoordinator(long incarnation) throws StorageError {
        if (incarnation != state.coordinator) {
            save(state.with(State.COORDINATOR, incarnation));
        }
    }

    /** Returns a round's update if it still awaits its receipt, otherwise null. */
    Pending pending(String run, long round) {
        for (Pending waiting : state.outbox) {
            if (waiting.run.equals(run) && waiting.round == round) {
                return waiting;
            }
        }
        return null;
    }

    /**
     * Returns the kept state of an order's run. Returns null if there is none, or if it belongs to a bundle that is not
     * a version of the order's bundle.
     */
    Kept keptFor(Order order) {
        Kept run = state.runs.get(order.run);
        boolean same = run != null && (Arrays.equals(run.bundle, order.bundle.sha256)
                || Arrays.equals(run.origin, firstBundle(order)));
        return same ? run : null;
    }

    /** Returns the SHA-256 of the first version of an order's bundle. */
    private static byte[] firstBundle(Order order) {
        return order.origin.length == 0 ? order.bundle.sha256 : order.origin;
    }

    /** Returns true if the outcome of an order's job is still useful, even if only as a late update. */
    boolean stillWants(Order order) {
        Order current = state.orders.get(order.run);
        return current != null && (repeats(current, order) || current.round > order.round
                && Arrays.equals(firstBundle(current), firstBundle(order)));
    }

    /**
     * Returns true if an update for one of these orders of a run is also one for the other (WIRE.md, 5.7). A
     * coordinator that was restored from a backup or set up anew has other orders of the same rounds.
     */
    static boolean repeats(Order order, Order other) {
        return order.round == other.round && order.task.equals(other.task)
                && Arrays.equals(order.bundle.sha256, other.bundle.sha256)
                && Arrays.equals(order.modelHash, other.modelHash)
                && Arrays.equals(order.patchHash, other.patchHash);
    }

    boolean attemptsExhausted(Order order) {
        Attempt last = attempt(order);
        return last != null && last.starts >= MAX_STARTS
                && last.incarnation != state.incarnation;
    }

    /**
     * Returns the attempts at exactly this order, or null if there are none. The run's name is not enough to identify
     * an order, because another coordinator may reuse it.
     */
    private Attempt attempt(Order order) {
        Attempt last = state.attempts.get(order.run);
        boolean same = last != null && last.round == order.round
                && Arrays.equals(last.modelHash, order.modelHash);
        return same ? last : null;
    }

    /**
     * Accepts an order, which replaces the run's older one.
     *
     * @param policy the policy that allows it; null if the device requires none
     * @return the run that was evicted to make room; null if none was
     */
    String accept(Order order, TakenPolicy policy) throws StorageError, TooManyRuns {
        String run = order.run;
        List<String> recent = new ArrayList<>(state.recent);
        recent.add(run);
        recent = recent.subList(Math.max(0, recent.size() - MAX_RUNS), recent.size());
        Set<String> names = new HashSet<>(state.runs.keySet());
        names.addAll(state.orders.keySet());
        State changed = state.with(State.RECENT, recent);
        String evicted = null;
        if (!names.contains(run) && names.size() >= MAX_RUNS) {
            for (String old : state.runs.keySet()) {
                boolean used = state.recent.contains(old) || state.orders.containsKey(old);
                evicted = evicted == null && !used ? old : evicted;
            }
            if (evicted == null) {
                save(changed);
                throw new TooManyRuns(Refusals.tooManyRuns(GlobalModel.where(order), names.size(), MAX_RUNS));
            }
            changed = changed.with(State.RUNS, without(state.runs, evicted));
        }
        if (policy != null) {
            changed = changed.with(State.POLICIES, remembered(run, policy));
        }
        save(changed.with(State.ORDERS, with(state.orders, run, order)));
        return evicted;
    }

    /**
     * Returns the remembered policies keyed by run, including this one, with the most recently used last. Policies of
     * the least recently used runs are dropped.
     */
    private Map<String, TakenPolicy> remembered(String run, TakenPolicy policy) {
        Map<String, TakenPolicy> found = new LinkedHashMap<>(without(state.policies, run));
        found.put(run, policy);
        while (found.size() > MAX_POLICIES) {
            found.remove(found.keySet().iterator().next());
        }
        return found;
    }

    /**
     * Changes a kept order to use the chunk sizes given when the coordinator repeated it. Chunks that have already
     * arrived are kept.
     */
    void recut(Order order, Order repeated) throws StorageError {
        Order again = GlobalModel.recut(order, repeated);
        if (!Arrays.equals(again.encode(), order.encode())) {
            save(state.with(State.ORDERS, with(state.orders, order.run, again)));
        }
    }

    /** Removes an order's steps, because some of them are wrong. */
    void strikeSteps(Order order) throws StorageError {
        Order bare = order.with(Order.STEPS, Collections.emptyList());
        save(state.with(State.ORDERS, with(state.orders, order.run, bare)));
    }

    /** Records that an order's job is beginning. This counts at most once per start of the agent. */
    void begin(Order order) throws StorageError {
        Attempt last = attempt(order);
        if (last != null && last.incarnation == state.incarnation) {
            return;
        }
        Map<String, Attempt> attempts = new LinkedHashMap<>(state.attempts);
        Set<String> used = new HashSet<>(state.recent);
        used.addAll(state.orders.keySet());
        attempts.keySet().retainAll(used);
        attempts.put(order.run, Attempt.SCHEMA.empty().with(Attempt.ROUND, order.round)
                .with(Attempt.MODEL_HASH, order.modelHash)
                .with(Attempt.STARTS, last == null ? 1 : last.starts + 1)
                .with(Attempt.INCARNATION, state.incarnation));
        save(state.with(State.ATTEMPTS, attempts));
    }

    /** Records that an order's job was stopped on purpose, which does not count as a failed attempt. */
    void interrupt(Order order, byte[] checkpoint) throws StorageError {
        String run = order.run;
        Map<String, Stopped> stopped = without(state.stopped, run);
        stopped.keySet().retainAll(state.orders.keySet());
        if (checkpoint != null) {
            stopped.put(run, Stopped.SCHEMA.empty().with(Stopped.ROUND, order.round)
                    .with(Stopped.CHECKPOINT, checkpoint));
        }
        save(state.with(State.ATTEMPTS, without(state.attempts, run)).with(State.STOPPED, stopped));
    }

    /** Returns the name of the blob from which the order's job continues, or null if there is none. */
    byte[] checkpoint(Order order) {
        return checkpoint(state, order);
    }

    private static byte[] checkpoint(State state, Order order) {
        Stopped stopped = state.stopped.get(order.run);
        boolean same = stopped != null && stopped.round == order.round;
        return same ? stopped.checkpoint : null;
    }

    /** Removes the order of a run. */
    void drop(String run) throws StorageError {
        save(ended(state, run).with(State.ORDERS, without(state.orders, run)));
    }

    /** Removes an order that the device cannot carry out. */
    void decline(Order order) throws StorageError {
        drop(order.run);
        declined = Hex.encode(order.bundle.sha256);
    }

    /** Removes the order of a run, and remembers to refuse it if it is repeated. */
    void refuse(String run) throws StorageError {
        save(state.with(State.ORDERS, without(state.orders, run)));
    }

    /** Records that an order is done: stores its outcome and queues its update. A newer order of the run stays. */
    void finish(Order order, Outcome outcome) throws StorageError {
        String run = order.run;
        Kept entry = state.runs.get(run);
        // Evaluating a different bundle does not change the kept state, which belongs to the bundle trained last.
        if (order.task.equals("train") || entry == null || keptFor(order) != null) {
            entry = outcome.kept.with(Kept.BUNDLE, order.bundle.sha256).with(Kept.BASE, order.modelHash)
                    .with(Kept.ORIGIN, firstBundle(order)).with(Kept.LAYOUT, outcome.report.layoutHash);
        }
        List<Pending> outbox = new ArrayList<>(state.outbox);
        outbox.remove(pending(run, order.round));
        outbox.add(Pending.SCHEMA.empty().with(Pending.RUN, run).with(Pending.ROUND, order.round)
                .with(Pending.BLOB, outcome.update).with(Pending.METRIC, outcome.metric)
                .with(Pending.BEFORE, outcome.report.before.metric)
                .with(Pending.AFTER, outcome.report.after.metric));
        Order current = state.orders.get(run);
        State changed = ended(state, run).with(State.OUTBOX, outbox)
                .with(State.RUNS, with(without(state.runs, run), run, entry));
        save(current != null && repeats(current, order)
                ? changed.with(State.ORDERS, without(state.orders, run)) : changed);
    }

    /** Removes an update whose receipt has arrived, or whose blob is lost. */
    void removeUpdate(Pending waiting) throws StorageError {
        List<Pending> outbox = new ArrayList<>(state.outbox);
        outbox.remove(waiting);
        save(state.with(State.OUTBOX, outbox));
    }

    void setChunkBytes(int chunkBytes) throws StorageError {
        if (chunkBytes != state.chunkBytes) {
            save(state.with(State.CHUNK_BYTES, (long) chunkBytes));
        }
    }

    /**
     * Returns the names of all blobs that are still needed. They include the bundle of the last declined order, because
     * the next order may use the same one.
     */
    Set<String> needed() {
        Set<String> names = needed(state);
        names.addAll(uncertain);
        if (declined != null) {
            names.add(declined);
        }
        return names;
    }

    private static Set<String> needed(State state) {
        Set<String> names = new HashSet<>();
        for (Pending waiting : state.outbox) {
            names.add(Hex.encode(waiting.blob));
        }
        for (Order order : state.orders.values()) {
            for (Manifest manifest : named(order)) {
                names.add(Hex.encode(manifest.sha256));
            }
            names.add(Hex.encode(order.modelHash));
            for (Step step : order.steps) {
                names.add(Hex.encode(step.baseHash));
            }
            byte[] checkpoint = checkpoint(state, order);
            if (checkpoint != null) {
                names.add(Hex.encode(checkpoint));
            }
        }
        for (Kept run : state.runs.values()) {
            for (Field<Kept, byte[]> kept : Arrays.asList(Kept.BUNDLE, Kept.BASE, Kept.MODEL, Kept.RESIDUAL,
                    Kept.MOMENTS, Kept.START)) {
                if (run.get(kept) != null) {
                    names.add(Hex.encode(run.get(kept)));
                }
            }
        }
        return names;
    }

    /** Returns every blob that an order may ever need. */
    private static List<Manifest> named(Order order) {
        List<Manifest> found = new ArrayList<>(Arrays.asList(order.bundle, order.model));
        for (Step step : order.steps) {
            found.add(step.blob);
        }
        found.addAll(GlobalModel.ownBlobs(order));
        return found;
    }

    private static State ended(State state, String run) {
        return state.with(State.ATTEMPTS, without(state.attempts, run))
                .with(State.STOPPED, without(state.stopped, run));
    }

    private void save(State wanted) throws StorageError {
        State changed = budget == null ? wanted : wanted.with(State.SPENT, budget.commit());
        blobs.settle();
        try {
            journal.commit(changed.encode());
        } catch (StorageError error) {
            uncertain.addAll(needed(changed));
            throw error;
        }
        uncertain.clear();
        state = changed;
    }

    private static <T> Map<String, T> without(Map<String, T> table, String key) {
        Map<String, T> changed = new LinkedHashMap<>(table);
        changed.remove(key);
        return changed;
    }

    private static <T> Map<String, T> with(Map<String, T> table, String key, T value) {
        Map<String, T> changed = new LinkedHashMap<>(table);
        changed.put(key, value);
        return changed;
    }
}
