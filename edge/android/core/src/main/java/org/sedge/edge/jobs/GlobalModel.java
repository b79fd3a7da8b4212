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
import org.sedge.edge.wire.Refusals;
import org.sedge.edge.wire.Schema.Field;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Obtains the global model that an order names. The model may already be on disk; otherwise it is rebuilt by applying
 * steps to an older version, or downloaded whole (WIRE.md, 8.1, 8.2).
 */
public final class GlobalModel {
    private GlobalModel() {}

    /**
     * Returns the steps to apply to the newest version on disk. The list is empty if that version is the order's model;
     * null means that there is no version on disk.
     */
    private static List<Step> stepsLeft(Order order, Blobs blobs) {
        if (blobs.has(order.modelHash)) {
            return Collections.emptyList();
        }
        List<Step> steps = order.steps;
        for (int first = steps.size() - 1; first >= 0; first--) {
            if (blobs.has(steps.get(first).baseHash)) {
                return steps.subList(first, steps.size());
            }
        }
        return null;
    }

    /** Returns the blobs that an order needs, depending on which versions of the model are on disk. */
    public static List<Manifest> needed(Order order, Blobs blobs) {
        List<Manifest> found = new ArrayList<>();
        found.add(order.bundle);
        List<Step> left = stepsLeft(order, blobs);
        if (left == null) {
            found.add(order.model);
        } else {
            for (Step step : left) {
                found.add(step.blob);
            }
        }
        found.addAll(ownBlobs(order));
        return found;
    }

    /** Returns the order with the chunk sizes and download locations from a repetition of the order. */
    public static Order recut(Order order, Order repeated) {
        Map<String, Manifest> cut = new HashMap<>();
        List<Manifest> named = ownBlobs(repeated);
        named.add(repeated.bundle);
        named.add(repeated.model);
        for (Step step : repeated.steps) {
            named.add(step.blob);
        }
        for (Manifest manifest : named) {
            cut.put(identity(manifest), manifest);
        }
        Order again = order;
        for (Field<Order, Manifest> field : Arrays.asList(Order.BUNDLE, Order.MODEL, Order.PATCH_BLOB, Order.CORRECTION)) {
            Manifest manifest = order.get(field);
            if (manifest != null) {
                again = again.with(field, cut.getOrDefault(identity(manifest), manifest));
            }
        }
        List<Step> steps = new ArrayList<>();
        for (Step step : order.steps) {
            Manifest blob = step.blob;
            steps.add(step.with(Step.BLOB, cut.getOrDefault(identity(blob), blob)));
        }
        return again.with(Order.STEPS, steps).with(Order.PLACES, repeated.places);
    }

    private static String identity(Manifest manifest) {
        return Hex.encode(manifest.sha256) + " " + manifest.size;
    }

    /** Returns the blobs of the order's patch and correction, if there are any. */
    public static List<Manifest> ownBlobs(Order order) {
        List<Manifest> found = new ArrayList<>(
                Arrays.asList(order.patchBlob, order.correction));
        found.removeAll(Collections.singleton(null));
        return found;
    }

    /** Returns the order's global model, shape (n,). */
    public static float[] read(Order order, Blobs blobs, int size) throws StorageError, CodecError {
        byte[] hash = order.modelHash;
        List<Step> left = stepsLeft(order, blobs);
        if (left != null && left.isEmpty()) {
            return Vectors.read(blobs, hash, size);
        }
        float[] theta = new float[size];
        if (left == null) {
            SparseVector.decode(blobs.read(order.model.sha256), size).writeTo(theta);
        } else {
            try {
                theta = Vectors.read(blobs, left.get(0).baseHash, size);
                for (Step step : left) {
                    SparseVector.decode(blobs.read(step.blob.sha256), size).addTo(theta);
                }
            } catch (CodecError error) {
                throw new BrokenSteps(where(order) + ": " + error.getMessage());
            }
        }
        if (!Arrays.equals(Digests.sha256(Vectors.bytes(theta)), hash)) {
            throw left == null ? new CodecError(Refusals.wrongModel(where(order)))
                    : new BrokenSteps(Refusals.wrongSteps(where(order), left.size()));
        }
        return theta;
    }

    /** Returns the text by which messages refer to an order. */
    public static String where(Order order) {
        return "run " + order.run + ", round " + order.round;
    }
}
