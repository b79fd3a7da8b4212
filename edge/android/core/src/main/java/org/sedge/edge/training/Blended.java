package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.SedgeException.TrainingDiverged;
import org.sedge.edge.jobs.Blobs;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Layout.Tensor;
import org.sedge.edge.wire.Messages.Blend;
import org.sedge.edge.wire.Messages.Metrics;

import java.util.Collections;

/**
 * Computes the model with which a device predicts if its order blends models (spec/extensions.md, X26 and X27). If the
 * order does not, models are returned unchanged.
 */
final class Blended {
    private final Job job;
    private final Blobs blobs;
    private final Bundle bundle;
    private final Blend blend;
    /** The bias to which the log shares of the device's labels are added; null if there is none. */
    private final Tensor bias;
    /**
     * The start vector (n,) plus the log shares of the device's labels; null unless {@link #before} found that this
     * predicts better.
     */
    float[] informed;

    /** @throws CodecError if the order names a bias that the model does not have */
    Blended(Job job, Blobs blobs, Bundle bundle) throws CodecError {
        this.job = job;
        this.blobs = blobs;
        this.bundle = bundle;
        blend = job.order.work.blend;
        Tensor named = blend == null || blend.prior.isEmpty() ? null
                : bundle.layout.named(Collections.singletonList(blend.prior), "blend.prior").get(0);
        bias = named == null || named.to - named.from != bundle.numClasses ? null : named;
    }

    /**
     * Returns the model (n,) with which the device predicts before training. It is the start vector (n,), plus the log
     * shares of the device's labels if they improve it on the training examples, blended with the device's last model.
     */
    float[] before(float[] start, Trainer trainer, Examples train)
            throws StorageError, CodecError, TrainingDiverged {
        if (bias == null) {
            return model(start);
        }
        float[] shares = informed(start, train.targets);
        Metrics without = trainer.evaluate(start, train);
        Metrics with = trainer.evaluate(shares, train);
        boolean less = with.metric == without.metric && with.loss < without.loss;
        informed = less || bundle.metric.isBetter(with.metric, without.metric) ? shares : null;
        return model(informed == null ? start : informed);
    }

    /** Returns a model (n,) blended with the device's last one. */
    float[] model(float[] other) throws StorageError, CodecError {
        if (blend == null || blend.mix == 0 || job.kept.model == null) {
            return other;
        }
        float[] own = Vectors.read(blobs, job.kept.model, other.length);
        float share = (float) blend.mix;
        float rest = (float) (1 - blend.mix);
        for (int i = 0; i < own.length; i++) {
            own[i] = own[i] * share + other[i] * rest;
        }
        return own;
    }

    /**
     * Returns a copy of theta (n,) with the log shares of the labels, relative to equal shares, added to its bias (C,).
     */
    private float[] informed(float[] theta, Rows labels) {
        int classes = bias.to - bias.from;
        long[] counts = new long[classes];
        long counted = 0;
        for (int i = 0; i < labels.size(); i++) {
            if (labels.longAt(i) != Fitting.IGNORED) {
                counts[(int) labels.longAt(i)]++;
                counted++;
            }
        }
        float[] informed = theta.clone();
        for (int c = 0; c < classes; c++) {
            informed[bias.from + c] += (float) Math.log((counts[c] + 1.0) * classes / (counted + classes));
        }
        return informed;
    }
}
