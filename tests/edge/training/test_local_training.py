"""Local training: what it requests, in which order, and what it makes of the answers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.edge.harness import LAYOUT, N, drift, hash_of, theta_of
from tests.fleet import changed

from sedge_edge.training.critical_elements import critical, sparsified
from sedge_edge.training.local_training import (
    Answer,
    Evaluate,
    LocalResult,
    PickedStart,
    Request,
    check_order,
    local_training,
    mixture,
    run_to_end,
)
from sedge_edge.training.start_vector import StartCandidates
from sedge_edge.training.trainer import Trained, TrainingDiverged, TrainRequest
from sedge_protocol.errors import CodecError, LocalError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.update import Metrics
from sedge_protocol.wire.work import (
    Blend,
    DeviceScoring,
    OwnModel,
    PatchChoice,
    UpdateSelection,
    Work,
)

START, OWN = theta_of(1), theta_of(2)
SEED = 7
FIRST, SECOND, THIRD = (Training(local_epochs=n, prox=p) for n, p in ((1, 0.5), (2, 0.0), (3, 0.5)))


def order_of(**changes: Any) -> Order:
    plain = Order(
        run="run",
        round=1,
        task="train",
        bundle=describe(b"bundle"),
        model=describe(b"model"),
        model_hash=hash_of(START),
        work=Work(training=FIRST),
        seed=SEED,
    )
    return changed(plain, **changes)


class Teacher:
    """Answers as a trainer whose result tells what it was asked: theta + drift(seed)."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        match request:
            case Evaluate():
                return worth(request.theta)
            case TrainRequest():
                slope = drift(request.seed + 1) if request.gradient else None
                end, second = request.theta + drift(request.seed), request.second
                if second is not None:
                    second = replace(second, theta=second.theta - drift(request.seed), mix=0.75)
                return Trained(end, request.training.local_epochs, 10, slope, second=second)

    def asked_to_train(self) -> list[TrainRequest]:
        return [request for request in self.asked if isinstance(request, TrainRequest)]


def worth(theta: Theta) -> Metrics:
    """An evaluation that no two models share."""
    return Metrics(float(np.abs(theta).sum()), 0.5, 10)


def done(order: Order, own: Theta | None = None) -> tuple[LocalResult, Teacher]:
    teacher = Teacher()
    return run_to_end(local_training(order, LAYOUT, START, own), teacher.answer), teacher


def test_phases_follow_each_other_and_are_pulled_to_the_start() -> None:
    learned, teacher = done(order_of(then=(SECOND, THIRD)))
    first, second, third = teacher.asked_to_train()
    assert [t.training for t in (first, second, third)] == [FIRST, SECOND, THIRD]
    assert (first.theta, first.seed, first.anchor) == (START, SEED, None)
    np.testing.assert_array_equal(second.theta, START + drift(SEED))
    assert second.anchor is None  # without a prox there is nothing to be pulled by
    assert third.anchor is START
    assert len({first.seed, second.seed, third.seed}) == 3
    end = START + drift(SEED) + drift(second.seed) + drift(third.seed)
    np.testing.assert_array_equal(learned.trained.theta, end)
    assert (learned.trained.loss, learned.trained.steps) == (3, 30)
    assert learned.after == worth(end)


def test_a_device_predicts_with_the_mean_and_sends_the_last_step() -> None:
    teacher, mean = Teacher(), theta_of(9)

    def answer(request: Request) -> Answer:
        found = teacher.answer(request)
        return replace(found, mean=mean) if isinstance(found, Trained) else found

    order = order_of(training=Training(average=0.5))
    learned = run_to_end(local_training(order, LAYOUT, START, None), answer)
    np.testing.assert_array_equal(learned.trained.theta, START + drift(SEED))
    assert learned.model is mean
    assert learned.after == worth(mean)


def test_every_training_of_the_sent_model_is_corrected_and_no_other() -> None:
    teacher, added = Teacher(), drift(9)
    order = order_of(then=(SECOND,), own_model=OwnModel(FIRST))
    run_to_end(local_training(order, LAYOUT, START, None, None, added), teacher.answer)
    first, second, own = teacher.asked_to_train()
    assert first.correction is second.correction is added and own.correction is None


@pytest.mark.parametrize("own", [None, OWN], ids=["new", "known"])
def test_a_blend_is_with_the_last_own_model_if_there_is_one(own: Theta | None) -> None:
    learned, _ = done(order_of(blend=Blend(0.75)), own)
    sent = START + drift(SEED)
    blended = sent if own is None else 0.75 * own + 0.25 * sent
    np.testing.assert_allclose(learned.model, blended, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(learned.trained.theta, sent)


@pytest.mark.parametrize("own", [None, OWN], ids=["new", "known"])
def test_apfl_predicts_with_the_mixture(own: Theta | None) -> None:
    learned, teacher = done(order_of(own_model=OwnModel(mix=0.25, adaptive=True)), own)
    began = START if own is None else own
    _, both, _ = teacher.asked
    assert isinstance(both, TrainRequest) and both.second is not None
    own = both.second.theta
    assert (both.theta, own, both.second.mix, both.second.adaptive) == (START, began, 0.25, True)
    assert (both.training, both.seed) == (FIRST, SEED)
    sent, part = START + drift(SEED), began - drift(SEED)
    np.testing.assert_array_equal(learned.trained.theta, sent)
    assert learned.part is not None
    np.testing.assert_array_equal(learned.part, part)
    assert learned.mix == 0.75
    np.testing.assert_allclose(learned.model, 0.75 * part + 0.25 * sent, rtol=1e-6, atol=1e-7)
    assert learned.before == worth(mixture(0.25, began, START))
    assert learned.after == worth(learned.model)
    assert learned.trained.steps == 10


@pytest.mark.parametrize("adaptive", [False, True])
def test_an_adaptive_mixture_stays_one_at_its_ends(adaptive: bool) -> None:
    personal = OwnModel(mix=1.0, adaptive=adaptive)
    assert personal.mixes is adaptive
    _, teacher = done(order_of(own_model=personal), OWN)
    assert any(request.second is not None for request in teacher.asked_to_train()) is adaptive
    first = teacher.asked[0]
    assert isinstance(first, Evaluate)
    assert first.theta is OWN


@pytest.mark.parametrize("then", [(), (SECOND,)])
def test_critical_elements_come_from_the_last_gradient(then: tuple[Training, ...]) -> None:
    select = UpdateSelection(0.25)
    learned, teacher = done(order_of(select=select, keep=("norm.mean",), then=then))
    trainings = teacher.asked_to_train()
    assert [t.gradient for t in trainings] == [False] * len(then) + [True]
    end, slope = learned.trained.theta, drift(trainings[-1].seed + 1)
    chosen = critical(end, slope, LAYOUT, ("norm.mean",), select)
    assert learned.chosen is not None
    np.testing.assert_array_equal(learned.chosen, chosen)
    assert chosen.size == (N - 4) // 4
    sparse = sparsified(end, chosen, LAYOUT, ("norm.mean",))
    assert learned.sparse == worth(sparse) != learned.after
    assert learned.after == worth(end)


def test_a_gradient_that_is_not_finite_ends_the_training() -> None:
    teacher = Teacher()

    def answer(request: Request) -> Answer:
        if isinstance(request, TrainRequest):
            return Trained(START, 1.0, 1, np.full(N, np.inf, np.float32))
        return teacher.answer(request)

    with pytest.raises(TrainingDiverged, match="gradient is not finite"):
        run_to_end(local_training(order_of(select=UpdateSelection()), LAYOUT, START, None), answer)


def test_an_answer_to_another_question_is_a_fault_of_ours() -> None:
    with pytest.raises(LocalError, match="local training: Evaluate answered by Trained"):
        run_to_end(
            local_training(order_of(), LAYOUT, START, None), lambda _: Trained(START, 1.0, 1)
        )


def test_a_change_that_float32_cannot_tell_ends_the_training() -> None:
    start = np.full(N, 3e38, np.float32)

    def answer(request: Request) -> Answer:
        return Trained(-start, 1.0, 1) if isinstance(request, TrainRequest) else worth(START)

    with pytest.raises(TrainingDiverged, match="overflows float32"):
        run_to_end(
            local_training(order_of(select=UpdateSelection(gradient="delta")), LAYOUT, start, None),
            answer,
        )


FROZEN = Training(freeze=("body.weight", "tail"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"training": FROZEN}, "training.freeze: no tensor named 'tail'"),
        ({"then": (FIRST, FROZEN)}, "training.freeze: no tensor named 'tail'"),
        ({"own_model": OwnModel(FROZEN)}, "training.freeze: no tensor named 'tail'"),
        (
            {"scoring": DeviceScoring(0.5, tensors=("tail",))},
            "scoring.tensors: no parameter named 'tail'",
        ),
        (
            {"scoring": DeviceScoring(0.5, tensors=("norm.mean",))},
            "scoring.tensors: no parameter named 'norm.mean'",
        ),
        (
            {"scoring": DeviceScoring(0.5), "patch_hash": bytes(32)},
            "scoring: cannot be combined with a patch",
        ),
        (
            {"scoring": DeviceScoring(0.5), "own_model": OwnModel()},
            "scoring: cannot be combined with a patch",
        ),
        (
            {"own_model": OwnModel(mix=0.5), "correction": describe(b"d")},
            "correction: cannot be combined with a mixture",
        ),
        (
            {"own_model": OwnModel(mix=0.5), "training": Training(average=0.5)},
            "average: cannot be combined with a mixture",
        ),
        ({"choice": PatchChoice(0.5), "scoring": DeviceScoring(0.5)}, "choice: .*scoring or own"),
        ({"choice": PatchChoice(0.5), "own_model": OwnModel()}, "choice: .*scoring or own"),
        (
            {"own_model": OwnModel(mix=0.5), "select": UpdateSelection()},
            "select: training a mixture yields no gradient, expected 'delta'",
        ),
    ],
)
def test_what_no_device_can_do(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CodecError, match=text):
        check_order(order_of(**changes), LAYOUT)


# A start that the device picks.

WHERE = np.array([1, 4, 5, 9], np.intp)
WITH_PATCH = np.where(np.isin(np.arange(N), WHERE), OWN, START)


def picked(
    found: list[tuple[float, float]], whole: Theta | None = WITH_PATCH
) -> tuple[LocalResult, list[Request]]:
    """What becomes of an order whose starts have these accuracies and losses, and what was asked."""
    asked: list[Request] = []
    worths = iter(found)
    teacher = Teacher()

    def answer(request: Request) -> Answer:
        asked.append(request)
        if isinstance(request, Evaluate) and request.held_out:
            accuracy, loss = next(worths)
            return Metrics(loss, accuracy, 3)
        return teacher.answer(request)

    order = order_of(choice=PatchChoice(0.5))
    candidates = StartCandidates(START, whole)
    learned = run_to_end(local_training(order, LAYOUT, WITH_PATCH, None, candidates), answer)
    assert next(worths, None) is None
    return learned, asked


@pytest.mark.parametrize(
    ("found", "patched"),
    [
        ([(0.5, 1.0), (0.5, 1.0)], False),
        ([(0.5, 1.0), (0.7, 2.0)], True),
        ([(0.5, 1.0), (0.5, 0.9)], True),
        ([(0.5, 1.0), (0.4, 0.1)], False),
    ],
    ids=["both alike", "the better one", "the less loss", "accuracy before loss"],
)
def test_the_better_start_is_picked(found: list[tuple[float, float]], patched: bool) -> None:
    learned, asked = picked(found)
    trials = [request for request in asked if isinstance(request, Evaluate) and request.held_out]
    assert len(trials) == 2
    assert asked[:2] == trials  # before anything else is asked
    for request, theta in zip(trials, (START, WITH_PATCH), strict=True):
        np.testing.assert_array_equal(request.theta, theta)
    assert isinstance(learned.picked, PickedStart) and learned.picked.patched is patched
    start = WITH_PATCH if patched else START
    np.testing.assert_array_equal(learned.picked.start, start)
    assert learned.before == worth(start)
    np.testing.assert_array_equal(learned.trained.theta, start + drift(SEED))
    assert all(not request.held_out for request in asked[2:] if isinstance(request, Evaluate))


def test_a_device_without_a_patch_has_nothing_to_pick_from() -> None:
    learned, _ = picked([], whole=None)
    assert isinstance(learned.picked, PickedStart) and learned.picked.patched is False
    np.testing.assert_array_equal(learned.trained.theta, START + drift(SEED))
