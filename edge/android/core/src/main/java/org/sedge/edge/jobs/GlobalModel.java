package org.sedge.edge.jobs;

import org.sedge.edge.SedgeException.BrokenSteps;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.codec.SparseVector;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Step;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Struct;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The order's global model: here already, made by steps from an older one, or fetched whole (WIRE.md, 8.1 and 8.2). */
public final class GlobalModel {
    private GlobalModel() {}

    /** The steps from the newest version that is here: none for the model itself; null without any version. */
    private static List<Struct> stepsLeft(Struct order, Blobs blobs) {
        if (blobs.has(order.get(Order.MODEL_HASH))) {
            return Collections.emptyList();
        }
        List<Struct> steps = order.get(Order.STEPS);
        for (int first = steps.size() - 1; first >= 0; first--) {
            if (blobs.has(steps.get(first).get(Step.BASE_HASH))) {
                return steps.subList(first, steps.size());
            }
        }
        return null;
    }

    /** The blobs that an order needs, given which versions are here. */
    public static List<Manifest> needed(Struct order, Blobs blobs) {
        List<Manifest> found = new ArrayList<>();
        found.add(order.get(Order.BUNDLE));
        List<Struct> left = stepsLeft(order, blobs);
        if (left == null) {
            found.add(order.get(Order.MODEL));
        } else {
            for (Struct step : left) {
                found.add(step.get(Step.BLOB));
            }
        }
        found.addAll(ownBlobs(order));
        return found;
    }

    /** The order, with its blobs cut, and in the places, as in its repetition. */
    public static Struct recut(Struct order, Struct repeated) {
        Map<String, Manifest> cut = new HashMap<>();
        List<Manifest> named = ownBlobs(repeated);
        named.add(repeated.get(Order.BUNDLE));
        named.add(repeated.get(Order.MODEL));
        for (Struct step : repeated.get(Order.STEPS)) {
            named.add(step.get(Step.BLOB));
        }
        for (Manifest manifest : named) {
            cut.put(identity(manifest), manifest);
        }
        Struct again = order;
        for (Field<Manifest> field : Arrays.asList(Order.BUNDLE, Order.MODEL, Order.PATCH_BLOB, Order.CORRECTION)) {
            Manifest manifest = order.get(field);
            if (manifest != null) {
                again = again.with(field, cut.getOrDefault(identity(manifest), manifest));
            }
        }
        List<Struct> steps = new ArrayList<>();
        for (Struct step : order.get(Order.STEPS)) {
            Manifest blob = step.get(Step.BLOB);
            steps.add(step.with(Step.BLOB, cut.getOrDefault(identity(blob), blob)));
        }
        return again.with(Order.STEPS, steps).with(Order.PLACES, repeated.get(Order.PLACES));
    }

    private static String identity(Manifest manifest) {
        return Hex.encode(manifest.sha256) + " " + manifest.size;
    }

    /** The patch and the correction, where they are blobs. */
    public static List<Manifest> ownBlobs(Struct order) {
        List<Manifest> found = new ArrayList<>(
                Arrays.asList(order.get(Order.PATCH_BLOB), order.get(Order.CORRECTION)));
        found.removeAll(Collections.singleton(null));
        return found;
    }

    /** The order's global model (n,), which is kept from now on. */
    public static float[] read(Struct order, Blobs blobs, int size) throws StorageError, CodecError {
        byte[] hash = order.get(Order.MODEL_HASH);
        List<Struct> left = stepsLeft(order, blobs);
        if (left != null && left.isEmpty()) {
            return Vectors.read(blobs, hash, size);
        }
        float[] theta = new float[size];
        if (left == null) {
            SparseVector.decode(blobs.read(order.get(Order.MODEL).sha256), size).writeTo(theta);
        } else {
            try {
                theta = Vectors.read(blobs, left.get(0).get(Step.BASE_HASH), size);
                for (Struct step : left) {
                    SparseVector.decode(blobs.read(step.get(Step.BLOB).sha256), size).addTo(theta);
                }
            } catch (CodecError error) {
                throw new BrokenSteps(where(order) + ": " + error.getMessage());
            }
        }
        byte[] data = Vectors.bytes(theta);
        if (!Arrays.equals(Digests.sha256(data), hash)) {
            throw left == null ? new CodecError(where(order) + ": model_hash does not match the model")
                    : new BrokenSteps(where(order) + ": model_hash does not match the last of " + left.size() + " steps");
        }
        blobs.write(data);
        return theta;
    }

    /** An order as messages name it. */
    public static String where(Struct order) {
        return "run " + order.get(Order.RUN) + ", round " + order.get(Order.ROUND);
    }
}
