"""FedOBP with a personal fraction that each device picks, against a slow twin: plain loops over lists.

There is no paper: idea 1 beyond them. Per round and device, with sizes s_0 < s_1 < ...:

    I_k = (th_k - g_k)^2; K_j = the s_j largest I_k, without those equal to the next one
    the device evaluates g with th on K_j on what it holds out, for every j
    it starts from the best: highest accuracy, then least loss, then smallest j
    and trains as ever; g <- the mean of all

Five devices with quadratic losses (``toy_fleet``). What a device holds out has a centre of its own, and its
accuracy is so coarse that losses decide, too. The fast side is the strategy's assignments, the device's
own training and the cloud's view of the update.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.cloud.contexts import context_of
from tests.cloud.contexts import follow as after
from tests.paper.toy_fleet import DEVICES, LAYOUT, STATISTIC, TRAINING, N, Problem, Vector

from sedge_cloud.strategies.fedobp import FedOBP
from sedge_cloud.strategy import Assignment, ClientModel, Update, place
from sedge_edge.training.local_training import (
    Answer,
    Evaluate,
    LocalResult,
    Request,
    Train,
    local_training,
    run_to_end,
)
from sedge_edge.training.start_vector import StartCandidates
from sedge_edge.training.trainer import Trained
from sedge_protocol.codec import SparseVector
from sedge_protocol.codec.patch_levels import part
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Order, PatchChoice, Work
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.update import Metrics

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
    """The last global model, and by round and device the level that was picked and the elements with it."""

    g: Vector
    picked: list[tuple[int, set[int]]]


# The twin -----------------------------------------------------------------------------------------


def top(scores: dict[int, float], count: int) -> set[int]:
    ordered = sorted(scores.values(), reverse=True)
    bound = ordered[count] if count < len(ordered) else 0.0
    return {k for k, score in scores.items() if score > max(bound, 0.0)}


def twin_run(problem: Problem, sizes: tuple[int, ...]) -> Outcome:
    g = [float(x) for x in problem.first]
    models: list[Vector | None] = [None] * DEVICES
    picked: list[tuple[int, set[int]]] = []
    for cohort in problem.cohorts:
        for i in cohort:
            own, base = models[i], list(g)
            best, rank = (0, set[int]()), (-1.0, 0.0)
            if own is not None:
                scores = {k: (own[k] - g[k]) ** 2 for k in SCORED}
                base = [own[k] if k in STATISTIC else g[k] for k in range(N)]
                for j, size in enumerate(sizes):
                    chosen = top(scores, size)
                    start = [own[k] if k in chosen else base[k] for k in range(N)]
                    accuracy, loss = held_out(problem, i, start)
                    if (accuracy, -loss) > rank:
                        best, rank = (j, chosen), (accuracy, -loss)
                base = [own[k] if k in best[1] else base[k] for k in range(N)]
            picked.append(best)
            models[i] = trained(problem, i, base)
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
        assert isinstance(request, Evaluate | Train)
        w = [float(x) for x in request.theta]
        if isinstance(request, Train):
            return Trained(np.array(trained(problem, device, w), np.float32), 0.5, 3)
        accuracy, loss = held_out(problem, device, w) if request.held_out else (0.5, 1.0)
        return Metrics(loss, accuracy, 10)

    bare = theta.copy()
    if own is not None:
        bare[STATISTIC] = own[STATISTIC]
    whole, where = bare.copy(), place(SparseVector(N, np.empty(0, np.uint32), np.empty(0, "f4")))
    if plan.patch is not None:
        plan.patch.scatter_into(whole)
        where = place(plan.patch)
    levels = np.empty(0, np.uint8) if plan.levels is None else plan.levels
    order = Order(
        run="r", round=1, task="train", bundle=BLOB, model=BLOB, model_hash=bytes(32),
        work=Work(choice=PatchChoice(plan.holdout)),
    )  # fmt: skip
    course = local_training(order, LAYOUT, whole, None, StartCandidates(bare, whole, where, levels))
    return run_to_end(course, answer)


def fast_run(problem: Problem, sizes: tuple[int, ...]) -> Outcome:
    strategy = FedOBP(prefixes=sizes)
    context = context_of(LAYOUT, problem.first)
    known = [ClientModel() for _ in range(DEVICES)]
    models: list[Theta | None] = [None] * DEVICES
    picked: list[tuple[int, set[int]]] = []
    for number, cohort in enumerate(problem.cohorts, start=1):
        updates: list[Update] = []
        for i in cohort:
            plan = strategy.plan(context, known[i])
            learned = learn(problem, i, plan, context.theta, models[i])
            assert learned.picked is not None
            models[i] = learned.model
            delta = learned.model - learned.picked.start
            delta[STATISTIC] = 0
            patch = plan.patch
            if patch is not None and plan.levels is not None:
                patch = part(patch, plan.levels, learned.picked.level)
            indices = patch.indices if patch is not None else None
            places = set[int]() if indices is None else {int(k) for k in indices}
            picked.append((learned.picked.level, places))
            change = SparseVector(N, None, delta)
            updates.append(Update(f"d{i}", problem.examples[i], context.theta, patch, change))
        for i, update in zip(cohort, updates, strict=True):
            known[i] = ClientModel(update.trained, number)
        context = after(context, strategy.apply(context, iter(updates)))
    return Outcome([float(x) for x in context.theta], picked)


@pytest.mark.parametrize("sizes", [(0, 2, 5, 10), (0, 4), (1, 3, 6), (7,)], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_a_run_is_as_in_plain_loops(seed: int, sizes: tuple[int, ...]) -> None:
    problem = Problem.of(seed)
    expected, found = twin_run(problem, sizes), fast_run(problem, sizes)
    assert found.picked == expected.picked
    np.testing.assert_allclose(
        [found.g[k] for k in SCORED], [expected.g[k] for k in SCORED], rtol=0, atol=2e-5
    )


def test_devices_differ_in_what_they_pick() -> None:
    """A twin of devices that all take the same would agree as well."""
    found = [
        level for seed in range(6) for level, _ in fast_run(Problem.of(seed), (0, 2, 5)).picked
    ]
    assert set(found) == {0, 1, 2}
    assert min(found.count(level) for level in range(3)) > 3
