package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.DurableBytes;
import org.sedge.edge.jobs.GlobalModel;
import org.sedge.edge.jobs.Kept;
import org.sedge.edge.jobs.StartVector;
import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Order;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Where to read a run's model from: the device's kept state, or an order whose blobs are all on disk. Read-only. */
public final class ModelSource {
    /** The name of the bundle's blob. */
    public final byte[] bundle;
    /** Whether the device has trained the model. */
    public final boolean trained;
    /** A value that changes whenever the model does. */
    public final String identity;
    private final Kept kept;
    private final Order order;

    private ModelSource(Kept kept) {
        this.kept = kept;
        order = null;
        bundle = kept.bundle;
        trained = kept.model != null;
        identity = Hex.encode(bundle) + Hex.encode(name());
    }

    private ModelSource(Order order) {
        kept = null;
        this.order = order;
        bundle = order.bundle.sha256;
        trained = false;
        identity = Hex.encode(Digests.sha256(order.encode()));
    }

    /** The models that an agent's state contains, keyed by run. */
    public static final class Sources {
        private final String where;
        private final Map<String, ModelSource> byRun = new LinkedHashMap<>();
        private final Set<String> bundles = new HashSet<>();

        /**
         * Finds the models that the journal currently names.
         *
         * @param where the state's location, for messages
         */
        public Sources(DurableBytes journal, String where, Blobs blobs) throws StorageError {
            this.where = where;
            byte[] saved = journal.load();
            State state;
            try {
                state = saved == null ? State.SCHEMA.empty() : State.SCHEMA.decode(saved);
            } catch (IllegalArgumentException error) {
                throw new StorageError("journal: damaged, " + error.getMessage(), error);
            }
            for (Order order : state.orders.values()) {
                bundles.add(Hex.encode(order.bundle.sha256));
                if (complete(order, blobs)) {
                    byRun.put(order.run, new ModelSource(order));
                }
            }
            for (Map.Entry<String, Kept> run : state.runs.entrySet()) {
                bundles.add(Hex.encode(run.getValue().bundle));
                if (blobs.has(run.getValue().base) && !byRun.containsKey(run.getKey())) {
                    byRun.put(run.getKey(), new ModelSource(run.getValue()));
                }
            }
            for (Map.Entry<String, Kept> run : state.runs.entrySet()) {
                if (run.getValue().model != null) { // trained models come last, the newest at the end
                    byRun.remove(run.getKey());
                    byRun.put(run.getKey(), new ModelSource(run.getValue()));
                }
            }
        }

        /**
         * Returns true if all blobs of the order are on disk. Such an order may still be waiting, for example for the
         * phone to be charging.
         */
        private static boolean complete(Order order, Blobs blobs) {
            boolean complete = true;
            for (Manifest manifest : GlobalModel.needed(order, blobs)) {
                complete &= blobs.has(manifest.sha256);
            }
            return complete;
        }

        /** Returns the names of the bundles of all runs and orders, in hexadecimal digits. */
        public Set<String> bundles() {
            return bundles;
        }

        /**
         * Returns the model of a run. If {@code run} is null, returns the model that the device trained last or, if it
         * has not trained any, the newest one received.
         */
        public ModelSource find(String run) throws ConfigError {
            List<String> names = new ArrayList<>(byRun.keySet());
            String name = run == null && !names.isEmpty() ? names.get(names.size() - 1) : run;
            if (!byRun.containsKey(name)) {
                String expected = names.isEmpty() ? "a run with a model, but none has arrived" : "one of: " + String.join(", ", names);
                throw new ConfigError(where + ": run", "'" + (run == null ? "newest" : run) + "'", expected);
            }
            return byRun.get(name);
        }
    }

    /**
     * Reads the model (n,).
     *
     * @param size the number n of parameters in the bundle's layout
     */
    public float[] read(Blobs blobs, int size) throws StorageError, CodecError {
        if (order != null) {
            return StartVector.received(order, blobs, size);
        }
        return Vectors.read(blobs, name(), size);
    }

    private byte[] name() {
        byte[] untrained = kept.start == null ? kept.base : kept.start;
        return trained ? kept.model : untrained;
    }

    /** Returns true if both models belong to the same bundle. */
    public boolean sameBundle(ModelSource other) {
        return Arrays.equals(bundle, other.bundle);
    }
}
