"""FedOBP whose devices choose whether to start with their own elements, against a slow twin: plain loops.

There is no paper. Per round and device:

    I_k = (th_k - g_k)^2; K = the I_k above the q-quantile, as ever
    the device evaluates g, and g with th on K, on what it holds out
    it starts from the better: higher accuracy, then less loss, then g
    and trains as ever; g <- the mean of all

Five devices with quadratic losses (``toy_fleet``). What a device holds out has a centre of its own, and its
accuracy is so coarse that losses decide, too. The fast side is the strategy's assignments, the device's
own training and the cloud's view of the update.
"""

from dataclasses import dataclass
from math import floor

import numpy as np
import pytest
from tests.cloud.contexts import context_of
from tests.cloud.contexts import follow as after
from tests.paper.toy_fleet import DEVICES, LAYOUT, STATISTIC, TRAINING, N, Problem, Vector

from sedge_cloud.strategies.fedobp import FedOBP
from sedge_cloud.strategy import Assignment, ClientModel, Update
from sedge_edge.training.local_training import (
    Answer,
    Evaluate,
    LocalResult,
    Request,
    local_training,
    run_to_end,
)
from sedge_edge.training.start_vector import StartCandidates
from sedge_edge.training.trainer import Trained, TrainRequest
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.update import Metrics
from sedge_protocol.wire.work import PatchChoice, Work

SCORED = [k for k in range(N) if k not in STATISTIC]
BLOB = describe(b"blob")


def held_out(problem: Problem, device: int, w: Vector) -> tuple[float, float]:
    """Accuracy and loss of w on what the device holds out."""
    centre = [float(c) * (0.5 if k % 2 else 1.5) for k, c in enumerate(problem.centres[device])]
    loss = sum((w[k] - centre[k]) ** 2 for k in range(N) if k not in STATISTIC)
    return int(10 / (1 + loss / 4)) / 10, loss


def trained(problem: Problem, device: int, start: Vector) -> Vector:
    """Three epochs of one exact step each."""
    w = list(start)
    for _ in range(TRAINING.local_epochs):
        slope = problem.gradient(device, w)
        step = [w[k] - TRAINING.learning_rate * slope[k] for k in range(N)]
        w = problem.drifted(device, [w[k] if k in STATISTIC else step[k] for k in range(N)])
    return w


@dataclass
class Outcome:
    """The last global model, and by round and device the elements of the patch that it applied."""

    g: Vector
    picked: list[set[int]]


# The twin -----------------------------------------------------------------------------------------


def top(scores: dict[int, float], count: int) -> set[int]:
    ordered = sorted(scores.values(), reverse=True)
    bound = ordered[count] if count < len(ordered) else 0.0
    return {k for k, score in scores.items() if score > max(bound, 0.0)}


def twin_run(problem: Problem, quantile: float) -> Outcome:
    g = [float(x) for x in problem.first]
    models: list[Vector | None] = [None] * DEVICES
    count = len(SCORED) - 1 - floor(quantile * (len(SCORED) - 1))
    picked: list[set[int]] = []
    for cohort in problem.cohorts:
        for i in cohort:
            own, start, chosen = models[i], list(g), set[int]()
            if own is not None:
                scores = {k: (own[k] - g[k]) ** 2 for k in SCORED}
                start = [own[k] if k in STATISTIC else g[k] for k in range(N)]
                patched = [own[k] if k in top(scores, count) else start[k] for k in range(N)]
                (accuracy, loss), (its, its_loss) = (
                    held_out(problem, i, w) for w in (start, patched)
                )
                if (its, -its_loss) > (accuracy, -loss):
                    start, chosen = patched, top(scores, count)
            picked.append(chosen)
            models[i] = trained(problem, i, start)
        total = sum(problem.examples[i] for i in cohort)
        for k in SCORED:
            ends = [(problem.examples[i], models[i] or []) for i in cohort]
            g[k] = sum(m * w[k] for m, w in ends) / total
    return Outcome(g, picked)


# The strategy and the device against it -----------------------------------------------------------


def learn(
    problem: Problem, device: int, plan: Assignment, theta: Theta, own: Theta | None
) -> LocalResult:
    """A device's lesson, with its start assembled as an order tells it."""

    def answer(request: Request) -> Answer:
        assert isinstance(request, Evaluate | TrainRequest)
        w = [float(x) for x in request.theta]
        if isinstance(request, TrainRequest):
            return Trained(np.array(trained(problem, device, w), np.float32), 0.5, 3)
        accuracy, loss = held_out(problem, device, w) if request.held_out else (0.5, 1.0)
        return Metrics(loss, accuracy, 10)

    bare = theta.copy()
    if own is not None:
        bare[STATISTIC] = own[STATISTIC]
    whole = None if plan.patch is None else bare.copy()
    if plan.patch is not None and whole is not None:
        plan.patch.scatter_into(whole)
    order = Order(
        run="r", round=1, task="train", bundle=BLOB, model=BLOB, model_hash=bytes(32),
        work=Work(choice=PatchChoice(plan.holdout)),
    )  # fmt: skip
    course = local_training(order, LAYOUT, bare, None, StartCandidates(bare, whole))
    return run_to_end(course, answer)


def fast_run(problem: Problem, quantile: float) -> Outcome:
    strategy = FedOBP(quantile, holdout=0.2)
    context = context_of(LAYOUT, problem.first)
    known = [ClientModel() for _ in range(DEVICES)]
    models: list[Theta | None] = [None] * DEVICES
    picked: list[set[int]] = []
    for number, cohort in enumerate(problem.cohorts, start=1):
        updates: list[Update] = []
        for i in cohort:
            plan = strategy.plan(context, known[i])
            learned = learn(problem, i, plan, context.theta, models[i])
            assert learned.picked is not None
            models[i] = learned.model
            delta = learned.model - learned.picked.start
            delta[STATISTIC] = 0
            patch = plan.patch if learned.picked.patched else None
            indices = None if patch is None else patch.indices
            picked.append(set() if indices is None else {int(k) for k in indices})
            change = SparseVector(N, None, delta)
            updates.append(Update(f"d{i}", problem.examples[i], context.theta, patch, change))
        for i, update in zip(cohort, updates, strict=True):
            known[i] = ClientModel(update.trained, number)
        context = after(context, strategy.apply(context, iter(updates)))
    return Outcome([float(x) for x in context.theta], picked)


@pytest.mark.parametrize("quantile", [0.3, 0.7])
@pytest.mark.parametrize("seed", range(2))
def test_a_run_is_as_in_plain_loops(seed: int, quantile: float) -> None:
    problem = Problem.of(seed)
    expected, found = twin_run(problem, quantile), fast_run(problem, quantile)
    assert found.picked == expected.picked
    np.testing.assert_allclose(
        [found.g[k] for k in SCORED], [expected.g[k] for k in SCORED], rtol=0, atol=2e-5
    )


def test_devices_differ_in_what_they_pick() -> None:
    """A twin of devices that all take the same would agree as well."""
    found = [bool(places) for seed in range(6) for places in fast_run(Problem.of(seed), 0.5).picked]
    assert min(found.count(True), found.count(False)) > 10
