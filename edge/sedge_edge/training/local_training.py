"""Local training: the steps from a device's start vector to its update, independent of the trainer.

It is a generator that yields requests to train or evaluate, receives the answers, and returns the result. A
device answers one request after another (job.py). An emulator trains many devices at once and answers
requests of the same kind together.

    evaluate     if the device may choose its start: with and without the patch, on held-out examples; if
                 it blends models: with and without its class shares, on its training examples
    evaluate     what the device predicts with: the start vector, its own model, or their mixture
    train        the model that is sent, in one or more phases; the first also trains the device's own
                 part of a mixture (APFL)
    train        the own model, pulled towards the start vector (Ditto)
    evaluate     what the device predicts with now
    evaluate     the critical elements alone (FedPURIN)

n is the number of the model's parameters.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.counter_stream import Purpose, stream_key
from sedge_edge.training.critical_elements import critical, sparsified
from sedge_edge.training.examples import Examples
from sedge_edge.training.start_vector import StartCandidates
from sedge_edge.training.steppers.model import tensor_slices
from sedge_edge.training.trainer import (
    Exchange,
    Guidance,
    Moments,
    SecondModel,
    Trained,
    TrainingDiverged,
    TrainRequest,
)
from sedge_protocol.errors import CodecError, LocalError
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.arrays import check_exchange, unpack_arrays
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.objective import ACCURACY, Metric
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics
from sedge_protocol.wire.work import UpdateSelection, Work


@dataclass(frozen=True, eq=False)
class Evaluate:
    """A request to evaluate theta (n,) on the test or the held-out examples. The answer is ``Metrics``."""

    theta: Theta
    held_out: bool = False


Request: TypeAlias = Evaluate | TrainRequest
Answer: TypeAlias = Metrics | Trained


@dataclass(frozen=True, eq=False)
class PickedStart:
    """Whether a device has chosen to apply its patch, and the resulting start vector (n,)."""

    patched: bool
    start: Theta


@dataclass(frozen=True, eq=False)
class LocalResult:
    """The result of local training.

    ``trained`` is the model that is sent, with the loss in its last phase and the number of steps in all
    phases. ``model`` (n,) is what the device predicts with from now on. ``before`` and ``after`` are the
    metrics on the test examples. ``part`` (n,) is the device's own part of a mixture, and ``mix`` is that
    part's share. If the order selects elements, ``chosen`` (k,) are the critical ones, and ``sparse`` are
    the metrics with 0 in all that could have been chosen but were not. ``picked`` is set if the device
    picked its own start.
    ``informed`` (n,) is the start with the device's class shares, if the device predicts better with them.
    ``moments`` is the optimizer's state after the first phase, if the device keeps it.
    """

    before: Metrics
    trained: Trained
    after: Metrics
    model: Theta
    part: Theta | None = None
    mix: float | None = None
    chosen: NDArray[np.uint32] | None = None
    sparse: Metrics | None = None
    picked: PickedStart | None = None
    informed: Theta | None = None
    moments: Moments | None = None


LocalTraining: TypeAlias = Generator[Request, Answer, LocalResult]


def local_training(
    order: Order,
    layout: Layout,
    start: Theta,
    own: Theta | None,
    candidates: StartCandidates | None = None,
    correction: Theta | None = None,
    metric: Metric = ACCURACY,
    moments: Moments | None = None,
    guidance: Guidance | None = None,
) -> LocalTraining:
    """Carry out an order that passed ``check_order``, from start (n,) or the better one of ``candidates``.

    ``own`` (n,) is the device's own model, its part of a mixture or, if the order blends models, its last
    model. It is None if the device has none yet. ``correction`` (n,) is added to every gradient of the
    model that is sent. ``metric`` decides which of the candidates is better. If the order blends models,
    the candidates are evaluated, but the training still begins at the start. The first training phase
    begins with the optimizer state ``moments``. ``guidance`` holds the inputs of the order's guided loss;
    an empty model in it is replaced by the start vector.
    """
    personal, picked = order.work.own_model, None
    if order.work.choice is not None and candidates is not None:
        picked = yield from _pick(candidates, metric)
        start = picked.start
    mixes = personal is not None and personal.mixes
    mix, own = _share(order.work, own), start if own is None else own
    informed = None
    if order.work.blend is not None and candidates is not None:
        with_shares = yield from _pick(candidates, metric)
        informed = with_shares.start if with_shares.patched else None
    before = yield from _ask(
        Evaluate(mixture(mix, own, start if informed is None else informed)), Metrics
    )
    guidance = guidance and guidance.moved(lambda theta: theta if theta.size else start)
    first = yield from _trained(
        replace(_first_request(order, start, own, correction, moments), guidance=guidance)
    )
    trained, own = yield from _further_trainings(order, start, own, first, correction, guidance)
    if first.second is not None:
        own, mix = first.second.theta, first.second.mix
    model = mixture(mix, own, trained.model)
    after = yield from _ask(Evaluate(model), Metrics)
    result = LocalResult(
        before, trained, after, model, picked=picked, informed=informed, moments=first.moments
    )
    if mixes:
        result = replace(result, part=own, mix=mix)
    if order.work.select is None:
        return result
    gradient = _selection_gradient(order.work.select, start, trained)
    chosen = critical(trained.theta, gradient, layout, order.work.keep, order.work.select)
    alone = sparsified(trained.theta, chosen, layout, order.work.keep)
    sparse = yield from _ask(Evaluate(alone), Metrics)
    return replace(result, chosen=chosen, sparse=sparse)


def _pick(candidates: StartCandidates, metric: Metric) -> Generator[Request, Answer, PickedStart]:
    """Return the start that does better on the held-out examples, or the bare one on a tie."""
    if candidates.whole is None:
        return PickedStart(False, candidates.bare)
    bare = yield from _ask(Evaluate(candidates.bare, held_out=True), Metrics)
    whole = yield from _ask(Evaluate(candidates.whole, held_out=True), Metrics)
    if _badness(whole, metric) < _badness(bare, metric):
        return PickedStart(True, candidates.whole)
    return PickedStart(False, candidates.bare)


def _share(work: Work, own: Theta | None) -> float:
    """Return the share of own (n,) in the model that the device predicts with."""
    if work.blend is not None:
        return 0.0 if own is None else work.blend.mix
    return 0.0 if work.own_model is None else work.own_model.mix


def _badness(found: Metrics, metric: Metric) -> tuple[float, float]:
    return metric.badness(found.metric), found.loss


def _first_request(
    order: Order, start: Theta, own: Theta, correction: Theta | None, moments: Moments | None
) -> TrainRequest:
    """Return the request for the first training phase, including the device's own part of a mixture."""
    personal, training, seed = order.work.own_model, order.training, order.seed
    exchange = exchanged(order)
    if personal is not None and personal.mixes:
        second = SecondModel(own, personal.mix, personal.adaptive)
        return TrainRequest(start, training, seed, second=second, exchange=exchange)
    wanted = wants_gradient(order) and not order.work.then
    return TrainRequest(start, training, seed, None, wanted, correction, moments, exchange=exchange)


def exchanged(order: Order) -> Exchange:
    """Return the settings and arrays that the order exchanges in addition to the model."""
    return Exchange(order.work.settings, unpack_arrays(order.work), order.work.returns)


def _further_trainings(
    order: Order, start: Theta, own: Theta, first: Trained, correction: Theta | None,
    guidance: Guidance | None,
) -> Generator[Request, Answer, tuple[Trained, Theta]]:  # fmt: skip
    """Run the phases after the first, and return both models, with the total number of steps.

    The phases of the model that is sent come before the phase of the device's own model.
    """
    trained, steps = first, first.steps
    for phase, training in enumerate(order.work.then, start=1):
        wanted = wants_gradient(order) and phase == len(order.work.then)
        further = _further_request(trained.theta, training, order, phase, start, wanted)
        further = replace(
            further, correction=correction, exchange=exchanged(order), guidance=guidance
        )
        trained = yield from _trained(further)
        steps += trained.steps
    personal = order.work.own_model
    if personal is not None and not personal.mixes:
        alone = _further_request(own, personal.training, order, len(order.work.then) + 1, start)
        ended = yield from _trained(alone)
        own, steps = ended.model, steps + ended.steps
    return replace(trained, steps=steps), own


def run_to_end(training: LocalTraining, answer: Callable[[Request], Answer]) -> LocalResult:
    """Run local training to its end. ``answer`` answers its requests; whatever it raises is passed on."""
    request = next(training)
    while True:
        try:
            request = training.send(answer(request))
        except StopIteration as end:
            result: LocalResult = end.value
            return result


def examples_for(request: Evaluate, test: Examples, held_out: Examples | None) -> Examples:
    """Return the examples that a request asks to evaluate on."""
    if not request.held_out:
        return test
    if held_out is None:
        raise LocalError("local training: no examples are held out")
    return held_out


def mixture(mix: float, own: Theta, sent: Theta) -> Theta:
    """Return mix * own + (1 - mix) * sent, (n,).

    If mix is 0 or 1, returns the vector without copying it.
    """
    if mix in (0.0, 1.0):
        return own if mix else sent
    return np.multiply(own, np.float32(mix)) + np.multiply(sent, np.float32(1 - mix))


def wants_gradient(order: Order) -> bool:
    """Return True if the gradient of the last batch is needed, now or in the next round."""
    selects = order.work.select is not None and order.work.select.gradient == "last"
    return selects or scores_gradient(order)


def scores_gradient(order: Order) -> bool:
    """Return True if the device scores its elements by a gradient, which it keeps for the next round."""
    return order.work.scoring is not None and order.work.scoring.score in ("gradient", "fisher")


def check_order(order: Order, layout: Layout) -> None:
    """Raise ``CodecError`` for unknown tensors and for mutually exclusive settings."""
    own, personal = order.work.scoring, order.work.own_model
    check_exchange(order.work)
    trainings = [order.training, *order.work.then]
    if personal is not None:
        trainings.append(personal.training)
    tensor_slices(layout, (name for training in trainings for name in training.freeze))
    for name in () if own is None else own.tensors:
        tensor = layout.by_name.get(name)
        if tensor is None or tensor.role is not Role.PARAMETER:
            raise CodecError(f"scoring.tensors: no parameter named {name!r}")
    if own is not None and (order.patch_hash or personal is not None):
        raise CodecError("scoring: cannot be combined with a patch or own_model")
    if order.work.choice is not None and (own is not None or personal is not None):
        raise CodecError("choice: cannot be combined with scoring or own_model")
    blend = order.work.blend
    if blend is not None and (own is not None or personal is not None or order.work.choice):
        raise CodecError("blend: cannot be combined with scoring, own_model or choice")
    if blend is not None and blend.prior:
        tensor_slices(layout, [blend.prior], "blend.prior")
    if personal is not None and personal.mixes and order.training.average:
        raise CodecError("average: cannot be combined with a mixture")
    if personal is not None and personal.mixes and order.correction is not None:
        raise CodecError("correction: cannot be combined with a mixture")
    if personal is not None and personal.mixes and wants_gradient(order) and not order.work.then:
        raise CodecError("select: training a mixture yields no gradient, expected 'delta'")


A = TypeVar("A", Metrics, Trained)


def _ask(request: Request, kind: type[A]) -> Generator[Request, Answer, A]:
    answer = yield request
    if not isinstance(answer, kind):
        raise LocalError(
            f"local training: {type(request).__name__} answered by {type(answer).__name__}"
        )
    return answer


def _trained(request: TrainRequest) -> Generator[Request, Answer, Trained]:
    """Request a training phase and return the trained model.

    If the request asks for a gradient, raises ``TrainingDiverged`` unless it is finite.
    """
    trained = yield from _ask(request, Trained)
    if request.gradient:
        if trained.gradient is None:
            raise LocalError("local training: the trainer returned no gradient")
        if not np.isfinite(trained.gradient).all():
            raise TrainingDiverged("the last batch's gradient is not finite")
    return trained


def _selection_gradient(select: UpdateSelection, start: Theta, trained: Trained) -> Theta:
    """Return the gradient (n,) that elements are selected by: the last batch's, or trained minus start."""
    if select.gradient == "last" and trained.gradient is not None:
        return trained.gradient
    with np.errstate(over="ignore"):
        change = trained.theta - start
    if not np.isfinite(change).all():
        raise TrainingDiverged("the change from the start to the trained model overflows float32")
    return change


def _further_request(
    theta: Theta,
    training: Training,
    order: Order,
    phase: int,
    start: Theta,
    gradient: bool = False,
) -> TrainRequest:
    """Return the request for a training phase after the order's first, with its own shuffle.

    Its prox term, if it has one, pulls towards the order's start.
    """
    anchor = start if training.prox > 0 else None
    return TrainRequest(theta, training, phase_seed(order.seed, phase), anchor, gradient)


def phase_seed(seed: int, phase: int) -> int:
    """Return the seed, 0 to 2^63 - 1, of the ``phase``-th phase after an order's first, counted from 1."""
    return stream_key(seed, Purpose.FURTHER_TRAINING, phase) >> 1
