package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.GlobalModel;
import org.sedge.edge.jobs.Kept;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Step;
import org.sedge.edge.wire.Refusals;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Limits the sizes of an order's blobs to what its bundle's layout can require. The sizes are checked before the first
 * byte is fetched (WIRE.md, 5.11).
 */
final class BlobLimits {
    private static final int MAX_BUNDLE_BYTES = 1 << 26;
    /** Blobs above this size wait until the bundle has arrived, which shows whether they can be valid. */
    private static final int FIRST_BYTES = 1 << 24;
    /** The number of bundles to remember: more than the number of runs that a device keeps. */
    private static final int CAPACITY = 64;

    private final Blobs blobs;
    private final Map<String, Facts> known = new LinkedHashMap<>();

    /** Facts about a bundle. They are remembered so that the bundle need not be read again. */
    private static final class Facts {
        final int size;
        final byte[] manifestHash;
        final byte[] layoutHash;

        Facts(Bundle bundle) {
            size = bundle.layout.size;
            manifestHash = bundle.manifestHash();
            layoutHash = bundle.layout.hash;
        }
    }

    BlobLimits(Blobs blobs) {
        this.blobs = blobs;
    }

    /**
     * Checks the size of an order's bundle and, if the bundle is on disk, the sizes of the order's other blobs.
     *
     * @throws CodecError if the bundle is invalid, or a blob is too large
     */
    void check(Order order) throws CodecError, StorageError {
        Manifest bundle = order.bundle;
        if (bundle.size > MAX_BUNDLE_BYTES) {
            throw new CodecError("a bundle of " + bundle.size + " bytes, expected at most " + MAX_BUNDLE_BYTES);
        }
        if (!blobs.has(bundle.sha256)) {
            return;
        }
        int size = facts(bundle.sha256).size;
        check("a model", order.model, size);
        for (Step step : order.steps) {
            check("a step", step.blob, size);
        }
        check("a patch", order.patchBlob, size);
        check("a correction", order.correction, size);
    }

    /**
     * Checks that a new version of a bundle has the same tensors as the version to which the kept state belongs.
     *
     * @throws CodecError if the tensors differ
     */
    void checkLayout(Order order, Kept kept) throws CodecError, StorageError {
        byte[] bundle = order.bundle.sha256;
        if (kept != null && !Arrays.equals(kept.bundle, bundle) && blobs.has(bundle)
                && !Arrays.equals(facts(bundle).layoutHash, kept.layout)) {
            throw new CodecError(Refusals.otherLayout(GlobalModel.where(order)));
        }
    }

    /**
     * Returns true if a blob may be fetched now, and false if it must wait for the order's bundle. The order must have
     * passed {@link #check(Order)}.
     */
    boolean mayBegin(Order order, Manifest manifest) {
        Manifest bundle = order.bundle;
        return manifest.size <= FIRST_BYTES || Arrays.equals(manifest.sha256, bundle.sha256) || blobs.has(bundle.sha256);
    }

    private static void check(String name, Manifest manifest, int size) throws CodecError {
        long limit = 4096 + 4L * size * 17 / 16;
        if (manifest != null && manifest.size > limit) {
            throw new CodecError(Refusals.blobTooLarge(name, manifest.size, limit, size));
        }
    }

    /** Returns the SHA-256 of a bundle's manifest, or null while the bundle is not on disk. */
    byte[] manifestHash(byte[] bundle) throws CodecError, StorageError {
        return blobs.has(bundle) ? facts(bundle).manifestHash : null;
    }

    /** @throws CodecError for an invalid bundle */
    private Facts facts(byte[] bundle) throws CodecError, StorageError {
        String name = Hex.encode(bundle);
        Facts facts = known.get(name);
        if (facts == null) {
            facts = new Facts(Bundle.unpack(blobs.read(bundle)));
            if (known.size() >= CAPACITY) {
                known.remove(known.keySet().iterator().next());
            }
            known.put(name, facts);
        }
        return facts;
    }
}
