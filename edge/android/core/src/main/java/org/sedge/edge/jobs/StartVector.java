package org.sedge.edge.jobs;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.codec.SparseVector;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Layout.Tensor;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Refusals;

import java.util.Arrays;
import java.util.List;

/** Computes the vector from which a device starts a round (spec/training.md, T1). */
public final class StartVector {
    private StartVector() {}

    /** Returns the order's global model (n,) after applying the order's patch. */
    public static float[] received(Order order, Blobs blobs, int size) throws StorageError, CodecError {
        return patched(GlobalModel.read(order, blobs, size), order, blobs);
    }

    /**
     * Returns the global model (n,) after applying the order's patch and then the tensors {@code kept} from the
     * device's own model. Also stores the global model as a blob.
     */
    public static float[] of(Job job, Blobs blobs, int size, List<Tensor> kept) throws StorageError, CodecError {
        float[] theta = GlobalModel.read(job.order, blobs, size);
        if (!blobs.has(job.order.modelHash)) {
            blobs.write(Vectors.bytes(theta));
        }
        patched(theta, job.order, blobs);
        if (job.kept.model != null && !kept.isEmpty()) {
            float[] own = Vectors.read(blobs, job.kept.model, size);
            for (Tensor tensor : kept) {
                System.arraycopy(own, tensor.from, theta, tensor.from, tensor.to - tensor.from);
            }
        }
        return theta;
    }

    private static float[] patched(float[] theta, Order order, Blobs blobs) throws StorageError, CodecError {
        byte[] patch = order.patchBlob == null ? order.patch : blobs.read(order.patchBlob.sha256);
        if (patch.length > 0 || order.patchHash.length > 0) {
            if (!Arrays.equals(Digests.sha256(patch), order.patchHash)) {
                throw new CodecError(Refusals.wrongPatch(GlobalModel.where(order)));
            }
            SparseVector.decode(patch, theta.length).writeTo(theta);
        }
        return theta;
    }
}
