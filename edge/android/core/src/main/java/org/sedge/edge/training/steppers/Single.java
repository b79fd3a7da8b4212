package org.sedge.edge.training.steppers;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.training.Moments;
import org.sedge.edge.training.Optimizer;
import org.sedge.edge.training.TrainRequest;
import org.sedge.edge.training.Trained;
import org.sedge.edge.training.TrainingState;
import org.sedge.edge.wire.Layout;
import org.sedge.edge.wire.Layout.Tensor;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Trains one model. Gradients, added terms and weight decay do not change statistics or frozen tensors. */
public final class Single implements Stepper {
    private final Differentiate differentiate;
    private final TrainRequest request;
    private final float[] theta;
    private final Optimizer optimizer;
    private final List<Term> terms = new ArrayList<>();
    private final List<Tensor> frozen;
    private final List<Tensor> statistics = new ArrayList<>();

    /** @throws CodecError if the request freezes tensors that the model does not have */
    public Single(Differentiate differentiate, Layout layout, TrainRequest request) throws CodecError {
        this.differentiate = differentiate;
        this.request = request;
        theta = request.theta.clone();
        optimizer = new Optimizer(request.training, theta.length);
        frozen = layout.named(request.training.freeze, "training.freeze");
        for (Tensor tensor : layout.tensors) {
            if (tensor.statistic) {
                statistics.add(tensor);
            }
        }
        // Keep the terms in this order, because the result of a float32 sum depends on it.
        if (request.training.prox > 0) {
            terms.add(new Prox(request.training.prox, request.anchor));
        }
        if (request.correction != null) {
            terms.add(new Scaffold(request.correction));
        }
        if (request.moments != null) {
            optimizer.resume(request.moments.steps, request.moments.vectors);
        }
    }

    @Override
    public double step(double rate) throws CodecError {
        Differentiate.Differentiated found = differentiate.at(theta);
        float[] gradient = found.gradient;
        for (Term term : terms) {
            term.add(gradient, theta);
        }
        for (List<Tensor> fixed : Arrays.asList(statistics, frozen)) {
            for (Tensor tensor : fixed) {
                Arrays.fill(gradient, tensor.from, tensor.to, 0);
            }
        }
        optimizer.step(theta, gradient, rate);
        int at = 0;
        for (Tensor tensor : statistics) {
            System.arraycopy(found.statistics, at, theta, tensor.from, tensor.to - tensor.from);
            at += tensor.to - tensor.from;
        }
        for (Tensor tensor : frozen) { // weight decay changes them even if the gradient is 0
            System.arraycopy(request.theta, tensor.from, theta, tensor.from, tensor.to - tensor.from);
        }
        return found.loss;
    }

    @Override
    public float[] theta() {
        return theta;
    }

    @Override
    public List<float[]> vectors() {
        List<float[]> found = new ArrayList<>(Arrays.asList(optimizer.vectors));
        found.add(0, theta);
        return found;
    }

    @Override
    public void resume(TrainingState state) {
        System.arraycopy(state.vectors.get(0), 0, theta, 0, theta.length);
        long earlier = request.moments == null ? 0 : request.moments.steps;
        optimizer.resume(earlier + state.steps, state.vectors.subList(1, state.vectors.size()));
    }

    @Override
    public Trained trained(double loss, long steps, float[] mean) {
        boolean keeps = request.training.optimizerState.equals("keep");
        String name = request.training.optimizer;
        Moments moments = new Moments(name, optimizer.steps(), Arrays.asList(optimizer.vectors));
        return new Trained(theta, loss, steps, keeps ? moments : null, mean);
    }
}
