"""The methods around FedOBP, each against a slow twin that reads like its paper's pseudo-code.

A twin is plain loops over lists of float64 numbers: what the cloud sends, what a device does, what is
averaged. The strategy sees the same fleet through assignments and updates only (``toy_fleet``).
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from tests.paper.toy_fleet import (
    DEVICES,
    LAYOUT,
    SCORED,
    STATISTIC,
    TRAINING,
    Home,
    N,
    Problem,
    Vector,
    descend,
    mean,
    play,
)

from sedge_cloud.strategies.apfl import APFL
from sedge_cloud.strategies.ditto import Ditto
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.fedbn import FedBN
from sedge_cloud.strategies.fedper import FedPer, LGFedAvg
from sedge_cloud.strategies.fedprox import FedProx
from sedge_cloud.strategies.fedrep import FedBABU, FedRep
from sedge_cloud.strategies.fedselect import MASK, FedSelect, read_mask
from sedge_protocol.layout import Role

EPOCHS, RATE = TRAINING.local_epochs, TRAINING.learning_rate
SEEDS = range(2)
HEAD = [k for k in range(N) if LAYOUT.mask(("head.weight", "head.bias"))[k]]
NORM = [k for k in range(N) if LAYOUT.mask(("norm.weight", "norm.bias"))[k]]
BODY = [k for k in SCORED if k not in HEAD]


def descend_held(problem: Problem, device: int, w: Vector, anchor: Vector, mu: float) -> Vector:
    """Gradient steps on F_i(w) + mu/2 ||w - anchor||^2; statistics drift, and nothing holds them."""
    for _ in range(EPOCHS):
        g = problem.gradient(device, w)
        stepped = [w[k] - RATE * (g[k] + mu * (w[k] - anchor[k])) for k in range(N)]
        w = problem.drifted(device, [w[k] if k in STATISTIC else stepped[k] for k in range(N)])
    return w


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=2e-5)


def close_models(homes: Sequence[Home], expected: Sequence[Vector]) -> None:
    """Who has trained has this model."""
    for home, model in zip(homes, expected, strict=True):
        if home.model is not None:
            close(home.model, model)


# FedAvg, FedProx, Ditto, APFL: one model for all, and perhaps one beside it.


def with_statistics(w: Vector, own: Vector | None) -> Vector:
    """Where a device starts: the global model and its own statistics."""
    return [own[k] if own is not None and k in STATISTIC else w[k] for k in range(N)]


@pytest.mark.parametrize(("seed", "mu"), list(product(SEEDS, [0.0, 0.3, 2.0])))
def test_fedprox(seed: int, mu: float) -> None:
    problem = Problem.of(seed)
    w = problem.start
    own: list[Vector | None] = [None] * DEVICES
    for cohort in problem.cohorts:
        ends: list[Vector] = []
        for i in cohort:
            start = with_statistics(w, own[i])
            ends.append(descend_held(problem, i, start, start, mu))
            own[i] = ends[-1]
        w = [w[k] if k in STATISTIC else mean(problem, cohort, ends, k) for k in range(N)]
    close(play(FedProx(mu=mu), problem)[0].theta, w)
    if mu == 0:
        close(play(FedAvg(), problem)[0].theta, w)


@pytest.mark.parametrize(("seed", "lam"), list(product(SEEDS, [0.0, 0.5])))
def test_ditto(seed: int, lam: float) -> None:
    """The own model's statistics drift along in it; the sent model's stay on the device too."""
    problem = Problem.of(seed)
    w = problem.start
    kept: list[Vector | None] = [None] * DEVICES
    v: list[Vector | None] = [None] * DEVICES
    for cohort in problem.cohorts:
        ends: list[Vector] = []
        for i in cohort:
            start = with_statistics(w, kept[i])
            ends.append(descend_held(problem, i, start, start, 0.0))
            kept[i] = ends[-1]
            v[i] = descend_held(problem, i, v[i] or start, start, lam)
        w = [w[k] if k in STATISTIC else mean(problem, cohort, ends, k) for k in range(N)]
    state, homes = play(Ditto(lam=lam), problem)
    close(state.theta, w)
    for home, own in zip(homes, v, strict=True):
        assert (home.own is None) == (own is None)
        if own is not None:
            close(home.own, own)


@pytest.mark.parametrize(("seed", "adaptive"), list(product(SEEDS, [True, False])))
def test_apfl(seed: int, adaptive: bool) -> None:
    problem = Problem.of(seed)
    w = problem.start
    kept: list[Vector | None] = [None] * DEVICES
    v: list[Vector | None] = [None] * DEVICES
    alpha = [0.25] * DEVICES
    for cohort in problem.cohorts:
        ends: list[Vector] = []
        for i in cohort:
            wi = with_statistics(w, kept[i])
            vi, a = v[i] or wi, alpha[i]
            for _ in range(EPOCHS):
                both = problem.gradient(i, [a * vi[k] + (1 - a) * wi[k] for k in range(N)])
                towards = sum((vi[k] - wi[k]) * both[k] for k in range(N))
                g = problem.gradient(i, wi)
                wi = problem.drifted(i, [wi[k] - RATE * g[k] for k in range(N)])
                vi = [vi[k] - RATE * a * both[k] for k in range(N)]
                if adaptive:
                    a = min(1.0, max(0.0, a - RATE * towards))
            ends.append(wi)
            kept[i], v[i], alpha[i] = wi, vi, min(a, 0.999)
        w = [w[k] if k in STATISTIC else mean(problem, cohort, ends, k) for k in range(N)]
    state, homes = play(APFL(alpha=0.25, adaptive=adaptive), problem)
    close(state.theta, w)
    for home, own, a in zip(homes, v, alpha, strict=True):
        if own is not None and home.own is not None and home.mix is not None:
            close(home.own, own)
            close(min(home.mix, 0.999), a)


# FedPer, LG-FedAvg, FedBN, FedRep, FedBABU: a part of the model for all.


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("strategy", "private"),
    [
        (FedPer(), HEAD),
        (FedPer(head=("conv", "head.bias")), [*range(8), N - 2, N - 1]),
        (LGFedAvg(), BODY),
        (FedBN(), NORM),
        (FedBN(norms="all"), NORM),
    ],
)
def test_partial_averaging(
    strategy: FedPer | LGFedAvg | FedBN, private: list[int], seed: int
) -> None:
    """Algorithm 1 of each: private elements never leave the device, the others are averaged."""
    problem = Problem.of(seed)
    w, own = problem.start, [problem.start for _ in range(DEVICES)]
    for cohort in problem.cohorts:
        for i in cohort:
            start = [own[i][k] if k in private or k in STATISTIC else w[k] for k in range(N)]
            own[i] = descend(problem, i, start, EPOCHS, range(N))
        shared = [k for k in SCORED if k not in private]
        ends = [own[i] for i in cohort]
        w = [mean(problem, cohort, ends, k) if k in shared else w[k] for k in range(N)]
    state, homes = play(strategy, problem)
    close(state.theta, w)
    np.testing.assert_array_equal(state.theta[private], problem.first[private])
    close_models(homes, own)


@pytest.mark.parametrize(("seed", "body_epochs"), list(product(SEEDS, [1, 2, 5])))
def test_fedrep(seed: int, body_epochs: int) -> None:
    """Algorithm 1: tau steps on the head under the new body, then the body under the new head."""
    problem = Problem.of(seed)
    body, own = problem.start, [problem.start for _ in range(DEVICES)]
    for cohort in problem.cohorts:
        for i in cohort:
            w = [body[k] if k in BODY else own[i][k] for k in range(N)]
            w = descend(problem, i, w, max(1, EPOCHS - body_epochs), HEAD)
            own[i] = descend(problem, i, w, body_epochs, BODY)
        ends = [own[i] for i in cohort]
        body = [mean(problem, cohort, ends, k) if k in BODY else body[k] for k in range(N)]
    state, homes = play(FedRep(body_epochs=body_epochs), problem)
    close(state.theta, body)
    close_models(homes, own)


@pytest.mark.parametrize("seed", SEEDS)
def test_fedbabu(seed: int) -> None:
    """Algorithm 1: the head of the first model serves everybody; the device fits one after the body."""
    problem = Problem.of(seed)
    w, own = problem.start, [problem.start for _ in range(DEVICES)]
    for cohort in problem.cohorts:
        bodies: list[Vector] = []
        for i in cohort:
            start = [own[i][k] if k in STATISTIC else w[k] for k in range(N)]
            bodies.append(descend(problem, i, start, EPOCHS - 1, BODY))
            own[i] = descend(problem, i, bodies[-1], 1, HEAD)
        w = [mean(problem, cohort, bodies, k) if k in BODY else w[k] for k in range(N)]
    state, homes = play(FedBABU(), problem)
    close(state.theta, w)
    np.testing.assert_array_equal(state.theta[HEAD], problem.first[HEAD])
    close_models(homes, own)


# FedSelect: a part of the model that each device finds for itself.


def grad_select(mask: set[int], change: Vector, rate: float, limit: float) -> set[int]:
    """GradSelect: of each weight tensor the shared elements that changed most become personal."""
    found = set(mask)
    for tensor in LAYOUT.tensors:
        if tensor.role is Role.STATISTIC or len(tensor.shape) < 2:
            continue
        places = range(tensor.offset, tensor.offset + tensor.size)
        shared = [k for k in places if k not in mask]
        wanted = round(rate * len(shared))
        wanted = min(wanted, int(limit * tensor.size) - (tensor.size - len(shared)))
        ranked = sorted(shared, key=lambda k: (-abs(change[k]), k))
        found |= set(ranked[: max(0, wanted)])
    return found


@pytest.mark.parametrize(
    ("seed", "rate", "limit"), list(product(SEEDS, [0.2, 0.5], [0.0, 0.5, 1.0]))
)
def test_fedselect(seed: int, rate: float, limit: float) -> None:
    problem = Problem.of(seed)
    w, own = problem.start, [problem.start for _ in range(DEVICES)]
    masks: list[set[int]] = [set() for _ in range(DEVICES)]
    grown: list[set[int]] = [set() for _ in range(DEVICES)]
    for cohort in problem.cohorts:
        for i in cohort:
            masks[i] = grown[i]
            start = [own[i][k] if k in masks[i] or k in STATISTIC else w[k] for k in range(N)]
            own[i] = descend(problem, i, start, EPOCHS, range(N))
            change = [own[i][k] - start[k] for k in range(N)]
            grown[i] = grad_select(masks[i], change, rate, limit)
        for k in range(N):
            sharing = [i for i in cohort if k not in masks[i]]
            if sharing and k not in STATISTIC:
                w[k] = mean(problem, sharing, [own[i] for i in sharing], k)
    state, homes = play(FedSelect(rate=rate, limit=limit), problem)
    close(state.theta, w)
    close_models(homes, own)
    for home, mask in zip(homes, masks, strict=True):
        if home.model is not None:
            assert set(np.flatnonzero(read_mask(home.known.arrays.get(MASK), N)).tolist()) == mask
