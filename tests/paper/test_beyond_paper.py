"""What FedOBP has beyond the papers, against a slow twin: whole runs in plain loops over float64 numbers.

Five devices with quadratic losses (``toy_fleet``), three of them in a round. With ``holdout`` a device
evaluates the global model, with and without its own elements, on what it holds out, and starts from the
better: higher accuracy, then less loss, then without. What it holds out has a centre of its own, and its
accuracy is so coarse that losses decide, too. The fast side is the strategy's assignments, the device's own
training and the cloud's view of the update.
"""

from math import floor

import numpy as np
import pytest
from tests.cloud.contexts import context_of, follow
from tests.paper.toy_fleet import (
    DEVICES,
    LAYOUT,
    SCORED,
    STATISTIC,
    TRAINING,
    N,
    Problem,
    Vector,
    descend,
    mean,
)

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

BLOB = describe(b"blob")
Patch = dict[int, float]


def held_out(problem: Problem, device: int, w: Vector) -> tuple[float, float]:
    """Accuracy and loss of w on what the device holds out."""
    centre = [float(c) * (0.5 if k % 2 else 1.5) for k, c in enumerate(problem.centres[device])]
    loss = sum((w[k] - centre[k]) ** 2 for k in SCORED)
    return int(10 / (1 + loss / 4)) / 10, loss


def trained(problem: Problem, device: int, start: Vector) -> Vector:
    return descend(problem, device, start, TRAINING.local_epochs, range(N))


# The twin -----------------------------------------------------------------------------------------


def top(scores: Patch, count: int) -> set[int]:
    """The ``count`` largest scores above 0, without those equal to the next one."""
    ordered = sorted(scores.values(), reverse=True)
    bound = ordered[count] if count < len(ordered) else 0.0
    return {k for k, score in scores.items() if score > max(bound, 0.0)}


def chosen(scores: Patch, options: FedOBP) -> set[int]:
    """The elements above the q-quantile, or the fewest that hold the share eta of all scores."""
    size = len(scores)
    if options.energy == 0:
        assert isinstance(options.quantile, float)
        return top(scores, size - 1 - floor(options.quantile * (size - 1)))
    found, held = set[int](), 0.0
    for k in sorted(scores, key=lambda k: -scores[k]):
        if held >= options.energy * sum(scores.values()):
            break
        found.add(k)
        held += scores[k]
    most = floor(options.most * size)
    return found if len(found) <= most else top(scores, most)


def twin_run(problem: Problem, options: FedOBP) -> tuple[Vector, list[Patch]]:
    """All rounds: the last global model, and every patch that a device has started with."""
    g = problem.start
    models: list[Vector | None] = [None] * DEVICES
    patches: list[Patch] = []
    for cohort in problem.cohorts:
        for i in cohort:
            own, start, patch = models[i], g, Patch()
            if own is not None:
                scores = {k: (own[k] - g[k]) ** 2 for k in SCORED}  # (th_i - th_g)^2
                start = [own[k] if k in STATISTIC else g[k] for k in range(N)]
                patch = {k: own[k] for k in chosen(scores, options)}
            patched = [patch.get(k, start[k]) for k in range(N)]
            if options.holdout:
                (accuracy, loss), (its, its_loss) = (
                    held_out(problem, i, w) for w in (start, patched)
                )
                if (its, -its_loss) <= (accuracy, -loss):
                    patched, patch = start, Patch()
            patches.append(patch)
            models[i] = trained(problem, i, patched)
        ends = [models[i] or [] for i in cohort]
        g = [mean(problem, cohort, ends, k) if k in SCORED else g[k] for k in range(N)]
    return g, patches


# The strategy and the device against it -----------------------------------------------------------


def learn(
    problem: Problem, device: int, plan: Assignment, theta: Theta, own: Theta | None
) -> tuple[LocalResult, Theta, bool]:
    """A device's lesson, its start assembled as an order tells it; the start, and whether it is patched."""

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
    whole = bare.copy()
    if plan.patch is not None:
        plan.patch.scatter_into(whole)
    work = Work(choice=PatchChoice(plan.holdout)) if plan.holdout else Work()
    order = Order(
        run="r", round=1, task="train", bundle=BLOB, model=BLOB, model_hash=bytes(32), work=work
    )
    candidates = StartCandidates(bare, None if plan.patch is None else whole)
    result = run_to_end(local_training(order, LAYOUT, whole, None, candidates), answer)
    if result.picked is None:
        return result, whole, plan.patch is not None
    return result, result.picked.start, result.picked.patched


def fast_run(problem: Problem, options: FedOBP) -> tuple[Theta, list[Patch]]:
    """The same by the strategy's own assignments and updates."""
    context = context_of(LAYOUT, problem.first)
    known = [ClientModel() for _ in range(DEVICES)]
    models: list[Theta | None] = [None] * DEVICES
    patches: list[Patch] = []
    for number, cohort in enumerate(problem.cohorts, start=1):
        updates: list[Update] = []
        for i in cohort:
            plan = options.plan(context, known[i])
            learned, start, is_patched = learn(problem, i, plan, context.theta, models[i])
            models[i] = learned.model
            delta = learned.model - start
            delta[STATISTIC] = 0
            patch = plan.patch if is_patched else None
            indices = None if patch is None else patch.indices
            patches.append({} if indices is None else {int(k): float(start[k]) for k in indices})
            change = SparseVector(N, None, delta)
            updates.append(Update(f"d{i}", problem.examples[i], context.theta, patch, change))
        for i, update in zip(cohort, updates, strict=True):
            known[i] = ClientModel(update.trained, number, device=update.device)
        context = follow(context, options.apply(context, iter(updates)))
    return context.theta, patches


IDEAS = {
    "plain": FedOBP(0.7),
    "energy": FedOBP(energy=0.6, most=0.5),
    "energy, capped": FedOBP(energy=0.99, most=0.2),
    "holdout": FedOBP(0.7, holdout=0.2),
    "holdout, more": FedOBP(0.3, holdout=0.2),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("idea", IDEAS)
def test_a_run_is_as_in_plain_loops(idea: str, seed: int) -> None:
    problem, options = Problem.of(seed), IDEAS[idea]
    g, expected = twin_run(problem, options)
    theta, found = fast_run(problem, options)
    assert [set(patch) for patch in found] == [set(patch) for patch in expected]
    assert any(found)
    for one, other in zip(found, expected, strict=True):
        for k, value in one.items():
            assert value == pytest.approx(other[k], abs=2e-5)
    np.testing.assert_allclose(theta[SCORED], [g[k] for k in SCORED], rtol=0, atol=2e-5)


@pytest.mark.parametrize("idea", [idea for idea in IDEAS if "energy" in idea])
def test_an_idea_changes_what_it_is_about(idea: str) -> None:
    """A twin of something that does nothing would agree as well."""
    problem = Problem.of(1)
    assert fast_run(problem, IDEAS[idea])[1] != fast_run(problem, IDEAS["plain"])[1]


def test_devices_differ_in_what_they_pick() -> None:
    """A twin of devices that all take the same would agree as well."""
    options = FedOBP(0.5, holdout=0.2)
    found = [bool(places) for seed in range(6) for places in fast_run(Problem.of(seed), options)[1]]
    assert min(found.count(True), found.count(False)) > 10
