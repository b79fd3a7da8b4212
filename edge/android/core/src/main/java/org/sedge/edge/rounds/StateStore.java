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
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Metrics;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Report;
import org.sedge.edge.wire.Messages.Step;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Struct;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The durable state and every change of it. A change that throws {@code StorageError} has not happened. */
public final class StateStore {
    static final int MAX_RUNS = 16;
    /** An order that so many starts have begun and none has finished is refused: the job itself kills the agent. */
    static final int MAX_STARTS = 3;

    private final DurableBytes journal;
    private final Blobs blobs;
    private Struct state;
    /** What every commit records as spent; null: as before. */
    private Budget budget;
    /** The blobs of states that failed commits may have left on disk, to be found by the next start. */
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
                    + "begin anew without what it held", error);
        }
    }

    void spends(Budget spending) {
        budget = spending;
    }

    <T> T get(Field<T> field) {
        return state.get(field);
    }

    /** Begins a new start. With new keys both start counts begin anew, as no older frame has their MAC. */
    void start(long clockS, byte[] key) throws StorageError {
        Struct begun = state;
        if (get(State.KEY).length > 0 && !Arrays.equals(get(State.KEY), key)) {
            begun = begun.with(State.INCARNATION, 0L).with(State.COORDINATOR, 0L);
        }
        long incarnation = Frame.nextIncarnation(begun.get(State.INCARNATION), clockS);
        save(begun.with(State.INCARNATION, incarnation).with(State.KEY, key));
    }

    /** Commits the state as it is, to see whether the disk takes it. */
    void probe() throws StorageError {
        save(state);
    }

    void heardCoordinator(long incarnation) throws StorageError {
        if (incarnation != get(State.COORDINATOR)) {
            save(state.with(State.COORDINATOR, incarnation));
        }
    }

    /** The update of a round that still waits for its receipt; null where there is none. */
    Struct pending(String run, long round) {
        for (Struct waiting : get(State.OUTBOX)) {
            if (waiting.get(Pending.RUN).equals(run) && waiting.get(Pending.ROUND) == round) {
                return waiting;
            }
        }
        return null;
    }

    /** What is kept of an order's run; null where that is nothing, or belongs to another bundle. */
    Struct keptFor(Struct order) {
        Struct run = get(State.RUNS).get(order.get(Order.RUN));
        return run == null || !Arrays.equals(run.get(Kept.BUNDLE), order.get(Order.BUNDLE).sha256) ? null : run;
    }

    /** Whether the outcome of an order's job is still of use, if only as a late update. */
    boolean stillWants(Struct order) {
        Struct current = get(State.ORDERS).get(order.get(Order.RUN));
        return current != null && (same(current, order) || current.get(Order.ROUND) > order.get(Order.ROUND)
                && Arrays.equals(current.get(Order.BUNDLE).sha256, order.get(Order.BUNDLE).sha256));
    }

    static boolean same(Struct order, Struct other) {
        return order.get(Order.RUN).equals(other.get(Order.RUN))
                && order.get(Order.ROUND).equals(other.get(Order.ROUND));
    }

    boolean attemptsExhausted(Struct order) {
        Struct last = attempt(order);
        return last != null && last.get(Attempt.STARTS) >= MAX_STARTS
                && !last.get(Attempt.INCARNATION).equals(get(State.INCARNATION));
    }

    /** The attempts at this very order; another coordinator may use its run's name again. */
    private Struct attempt(Struct order) {
        Struct last = get(State.ATTEMPTS).get(order.get(Order.RUN));
        boolean same = last != null && last.get(Attempt.ROUND).equals(order.get(Order.ROUND))
                && Arrays.equals(last.get(Attempt.MODEL_HASH), order.get(Order.MODEL_HASH));
        return same ? last : null;
    }

    /** Accepts an order in place of its run's older one. Returns the run that made room for it; null: none had to. */
    String accept(Struct order) throws StorageError, TooManyRuns {
        String run = order.get(Order.RUN);
        List<String> recent = new ArrayList<>(get(State.RECENT));
        recent.add(run);
        recent = recent.subList(Math.max(0, recent.size() - MAX_RUNS), recent.size());
        Set<String> names = new HashSet<>(get(State.RUNS).keySet());
        names.addAll(get(State.ORDERS).keySet());
        Struct changed = state.with(State.RECENT, recent);
        String evicted = null;
        if (!names.contains(run) && names.size() >= MAX_RUNS) {
            for (String old : get(State.RUNS).keySet()) {
                boolean used = get(State.RECENT).contains(old) || get(State.ORDERS).containsKey(old);
                evicted = evicted == null && !used ? old : evicted;
            }
            if (evicted == null) {
                save(changed);
                throw new TooManyRuns(GlobalModel.where(order) + ": found " + names.size() + " other runs, each with "
                        + "one of the last " + MAX_RUNS + " orders, expected one that seems to be over");
            }
            changed = changed.with(State.RUNS, without(get(State.RUNS), evicted));
        }
        save(changed.with(State.ORDERS, with(get(State.ORDERS), run, order)));
        return evicted;
    }

    /** Fetches an order's blobs in the chunks of its repetition; what is here of them stays. */
    void recut(Struct order, Struct repeated) throws StorageError {
        Struct again = GlobalModel.recut(order, repeated);
        if (!Arrays.equals(again.encode(), order.encode())) {
            save(state.with(State.ORDERS, with(get(State.ORDERS), order.get(Order.RUN), again)));
        }
    }

    /** Gives up the steps of an order: some are wrong. */
    void strikeSteps(Struct order) throws StorageError {
        Struct bare = order.with(Order.STEPS, Collections.emptyList());
        save(state.with(State.ORDERS, with(get(State.ORDERS), order.get(Order.RUN), bare)));
    }

    /** An order's job begins; counted once for each start of the agent. */
    void begin(Struct order) throws StorageError {
        Struct last = attempt(order);
        if (last != null && last.get(Attempt.INCARNATION).equals(get(State.INCARNATION))) {
            return;
        }
        Map<String, Struct> attempts = new LinkedHashMap<>(get(State.ATTEMPTS));
        Set<String> used = new HashSet<>(get(State.RECENT));
        used.addAll(get(State.ORDERS).keySet());
        attempts.keySet().retainAll(used);
        attempts.put(order.get(Order.RUN), Attempt.SCHEMA.empty().with(Attempt.ROUND, order.get(Order.ROUND))
                .with(Attempt.MODEL_HASH, order.get(Order.MODEL_HASH))
                .with(Attempt.STARTS, last == null ? 1 : last.get(Attempt.STARTS) + 1)
                .with(Attempt.INCARNATION, get(State.INCARNATION)));
        save(state.with(State.ATTEMPTS, attempts));
    }

    /** An order's job was stopped on purpose, which does not count against it. */
    void interrupt(Struct order, byte[] checkpoint) throws StorageError {
        String run = order.get(Order.RUN);
        Map<String, Struct> stopped = without(get(State.STOPPED), run);
        stopped.keySet().retainAll(get(State.ORDERS).keySet());
        if (checkpoint != null) {
            stopped.put(run, Stopped.SCHEMA.empty().with(Stopped.ROUND, order.get(Order.ROUND))
                    .with(Stopped.CHECKPOINT, checkpoint));
        }
        save(state.with(State.ATTEMPTS, without(get(State.ATTEMPTS), run)).with(State.STOPPED, stopped));
    }

    /** The blob to go on from; null where there is none. */
    byte[] checkpoint(Struct order) {
        return checkpoint(state, order);
    }

    private static byte[] checkpoint(Struct state, Struct order) {
        Struct stopped = state.get(State.STOPPED).get(order.get(Order.RUN));
        boolean same = stopped != null && stopped.get(Stopped.ROUND).equals(order.get(Order.ROUND));
        return same ? stopped.get(Stopped.CHECKPOINT) : null;
    }

    /** Gives up the order of a run. */
    void drop(String run) throws StorageError {
        save(ended(state, run).with(State.ORDERS, without(get(State.ORDERS), run)));
    }

    /** Gives up an order that the device cannot do. */
    void decline(Struct order) throws StorageError {
        drop(order.get(Order.RUN));
        declined = Hex.encode(order.get(Order.BUNDLE).sha256);
    }

    /** Gives up the order of a run, now and whenever it is repeated. */
    void refuse(String run) throws StorageError {
        save(state.with(State.ORDERS, without(get(State.ORDERS), run)));
    }

    /** An order is done: keeps its outcome, queues its update, and leaves a newer order alone. */
    void finish(Struct order, Outcome outcome) throws StorageError {
        String run = order.get(Order.RUN);
        Struct entry = get(State.RUNS).get(run);
        // An evaluation with another bundle keeps what belongs to the last training's.
        if (order.get(Order.TASK).equals("train") || entry == null || keptFor(order) != null) {
            entry = outcome.kept.with(Kept.BUNDLE, order.get(Order.BUNDLE).sha256)
                    .with(Kept.BASE, order.get(Order.MODEL_HASH));
        }
        List<Struct> outbox = new ArrayList<>(get(State.OUTBOX));
        outbox.remove(pending(run, order.get(Order.ROUND)));
        outbox.add(Pending.SCHEMA.empty().with(Pending.RUN, run).with(Pending.ROUND, order.get(Order.ROUND))
                .with(Pending.BLOB, outcome.update).with(Pending.METRIC, outcome.metric)
                .with(Pending.BEFORE, outcome.report.get(Report.BEFORE).get(Metrics.METRIC))
                .with(Pending.AFTER, outcome.report.get(Report.AFTER).get(Metrics.METRIC)));
        Struct current = get(State.ORDERS).get(run);
        Struct changed = ended(state, run).with(State.OUTBOX, outbox)
                .with(State.RUNS, with(without(get(State.RUNS), run), run, entry));
        save(current != null && same(current, order)
                ? changed.with(State.ORDERS, without(get(State.ORDERS), run)) : changed);
    }

    /** An update has its receipt, or is lost. */
    void removeUpdate(Struct waiting) throws StorageError {
        List<Struct> outbox = new ArrayList<>(get(State.OUTBOX));
        outbox.remove(waiting);
        save(state.with(State.OUTBOX, outbox));
    }

    void setChunkBytes(int chunkBytes) throws StorageError {
        if (chunkBytes != get(State.CHUNK_BYTES)) {
            save(state.with(State.CHUNK_BYTES, (long) chunkBytes));
        }
    }

    /**
     * The names of all blobs that are still needed. The bundle of the last order that was declined is among them: the
     * next order may name it, too.
     */
    Set<String> needed() {
        Set<String> names = needed(state);
        names.addAll(uncertain);
        if (declined != null) {
            names.add(declined);
        }
        return names;
    }

    private static Set<String> needed(Struct state) {
        Set<String> names = new HashSet<>();
        for (Struct waiting : state.get(State.OUTBOX)) {
            names.add(Hex.encode(waiting.get(Pending.BLOB)));
        }
        for (Struct order : state.get(State.ORDERS).values()) {
            for (Manifest manifest : named(order)) {
                names.add(Hex.encode(manifest.sha256));
            }
            names.add(Hex.encode(order.get(Order.MODEL_HASH)));
            for (Struct step : order.get(Order.STEPS)) {
                names.add(Hex.encode(step.get(Step.BASE_HASH)));
            }
            byte[] checkpoint = checkpoint(state, order);
            if (checkpoint != null) {
                names.add(Hex.encode(checkpoint));
            }
        }
        for (Struct run : state.get(State.RUNS).values()) {
            for (Field<byte[]> kept : Arrays.asList(Kept.BUNDLE, Kept.BASE, Kept.MODEL, Kept.RESIDUAL, Kept.MOMENTS)) {
                if (run.get(kept) != null) {
                    names.add(Hex.encode(run.get(kept)));
                }
            }
        }
        return names;
    }

    /** Every blob that an order may come to need. */
    private static List<Manifest> named(Struct order) {
        List<Manifest> found = new ArrayList<>(Arrays.asList(order.get(Order.BUNDLE), order.get(Order.MODEL)));
        for (Struct step : order.get(Order.STEPS)) {
            found.add(step.get(Step.BLOB));
        }
        found.addAll(GlobalModel.ownBlobs(order));
        return found;
    }

    private static Struct ended(Struct state, String run) {
        return state.with(State.ATTEMPTS, without(state.get(State.ATTEMPTS), run))
                .with(State.STOPPED, without(state.get(State.STOPPED), run));
    }

    private void save(Struct wanted) throws StorageError {
        Struct changed = budget == null ? wanted : wanted.with(State.SPENT, budget.commit());
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

    private static Map<String, Struct> without(Map<String, Struct> table, String key) {
        Map<String, Struct> changed = new LinkedHashMap<>(table);
        changed.remove(key);
        return changed;
    }

    private static Map<String, Struct> with(Map<String, Struct> table, String key, Struct value) {
        Map<String, Struct> changed = new LinkedHashMap<>(table);
        changed.put(key, value);
        return changed;
    }
}
