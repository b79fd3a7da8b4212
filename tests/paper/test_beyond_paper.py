"""What FedOBP has beyond the papers, against a slow twin: whole runs in plain loops over float64 numbers.

Five devices with quadratic losses (``toy_fleet``), three of them in a round. ``holdout`` has its own twin.
"""

from dataclasses import dataclass
from math import floor

import numpy as np
import pytest
from tests.cloud.contexts import context_of, follow
from tests.paper.toy_fleet import (
    DEVICES,
    LAYOUT,
    STATISTIC,
    TRAINING,
    Home,
    N,
    Problem,
    Vector,
    perform,
)

from sedge_cloud.strategies.fedobp import FedOBP
from sedge_cloud.strategy import ClientModel, Update
from sedge_protocol.layout import Theta

SCORED = [k for k in range(N) if k not in STATISTIC]


# The twin -----------------------------------------------------------------------------------------


@dataclass
class Twin:
    """One device: its last model th_i."""

    model: Vector | None = None


def importance(own: Vector, shared: Vector) -> dict[int, float]:
    """(th_i - th_g)^2."""
    return {k: (own[k] - shared[k]) ** 2 for k in SCORED}


def top(scores: dict[int, float], count: int) -> set[int]:
    """The ``count`` largest scores above 0, without those equal to the next one."""
    ordered = sorted(scores.values(), reverse=True)
    bound = ordered[count] if count < len(ordered) else 0.0
    return {k for k, score in scores.items() if score > max(bound, 0.0)}


def chosen(scores: dict[int, float], options: FedOBP) -> set[int]:
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


def patch_of(me: Twin, g: Vector, options: FedOBP) -> dict[int, float]:
    """Where a device starts in place of the global model."""
    if me.model is None:
        return {}
    return {k: me.model[k] for k in chosen(importance(me.model, g), options)}


def twin_run(problem: Problem, options: FedOBP) -> tuple[Vector, list[dict[int, float]]]:
    """All rounds: the last global model, and every patch that was sent."""
    g = [float(x) for x in problem.first]
    devices = [Twin() for _ in range(DEVICES)]
    patches: list[dict[int, float]] = []
    for cohort in problem.cohorts:
        own = {i: patch_of(devices[i], g, options) for i in cohort}
        patches += own.values()
        for i in cohort:
            me = devices[i]
            w = [own[i].get(k, g[k]) for k in range(N)]
            if me.model is not None:
                w = [me.model[k] if k in STATISTIC else w[k] for k in range(N)]
            for _ in range(TRAINING.local_epochs):
                slope = problem.gradient(i, w)
                step = [w[k] - TRAINING.learning_rate * slope[k] for k in range(N)]
                w = problem.drifted(i, [w[k] if k in STATISTIC else step[k] for k in range(N)])
            me.model = w
        after = list(g)
        for k in SCORED:
            total = sum(problem.examples[i] for i in cohort)
            models = [(problem.examples[i], devices[i].model or []) for i in cohort]
            after[k] = sum(m * model[k] for m, model in models) / total
        g = after
    return g, patches


# The strategy against it --------------------------------------------------------------------------


def fast_run(problem: Problem, options: FedOBP) -> tuple[Theta, list[dict[int, float]]]:
    """The same by the strategy's own assignments and updates."""
    context = context_of(LAYOUT, problem.first)
    homes = {f"d{device}": Home() for device in range(DEVICES)}
    patches: list[dict[int, float]] = []
    for number, cohort in enumerate(problem.cohorts, start=1):
        updates: list[Update] = []
        for device in cohort:
            home = homes[f"d{device}"]
            plan = options.plan(context, home.known)
            updates.append(perform(problem, device, home, plan, context.theta, TRAINING))
            indices = plan.patch.indices if plan.patch is not None else None
            values = plan.patch.values if plan.patch is not None else np.empty(0)
            places = [] if indices is None else [int(k) for k in indices]
            patches.append(dict(zip(places, values.tolist(), strict=True)))
        for update in updates:
            homes[update.device].known = ClientModel(update.trained, number, device=update.device)
        context = follow(context, options.apply(context, iter(updates)))
    return context.theta, patches


IDEAS = {
    "plain": FedOBP(0.7),
    "energy": FedOBP(energy=0.6, most=0.5),
    "energy, capped": FedOBP(energy=0.99, most=0.2),
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


@pytest.mark.parametrize("idea", [idea for idea in IDEAS if idea != "plain"])
def test_an_idea_changes_what_it_is_about(idea: str) -> None:
    """A twin of something that does nothing would agree as well."""
    problem = Problem.of(1)
    assert fast_run(problem, IDEAS[idea])[1] != fast_run(problem, IDEAS["plain"])[1]
