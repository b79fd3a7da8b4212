"""Robust aggregation against slow twins of the papers' definitions, and under attack.

Trimmed mean and median: Yin et al. 2018, Definitions 1 and 2. Krum and multi-Krum: Blanchard et al. 2017,
section 4. The twins are loops over exact fractions; the attack is of two devices of ten, which send
minus a hundred times what they learned.
"""

import math
import statistics
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud.contexts import context_of, follow

from sedge_cloud.algorithms.averaging import robust_change
from sedge_cloud.algorithms.outliers import filter_outliers
from sedge_cloud.algorithms.robust import Robust, Rule
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Layout, Role, Theta

Exact = list[Fraction]

N = 7


def exactly(values: NDArray[np.float32]) -> Exact:
    return [Fraction(float(x)) for x in values]


# The twins ----------------------------------------------------------------------------------------


def twin_trimmed_mean(columns: Sequence[Exact], beta: Fraction) -> Exact:
    """Definition 2: of each coordinate the mean without the beta share at either end."""
    result: Exact = []
    for column in columns:
        ordered = sorted(column)
        b = min(int(beta * len(ordered)), (len(ordered) - 1) // 2)
        middle = ordered[b : len(ordered) - b]
        result.append(sum(middle, Fraction(0)) / len(middle))
    return result


def twin_median(columns: Sequence[Exact]) -> Exact:
    """Definition 1: the median of each coordinate."""
    result: Exact = []
    for column in columns:
        ordered, half = sorted(column), len(column) // 2
        odd = len(ordered) % 2
        result.append(ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2)
    return result


def twin_krum(vectors: Sequence[Exact], f: int, keep: int) -> list[int]:
    """The ``keep`` vectors with the smallest sum of squared distances to their d - f - 2 nearest."""
    scores: Exact = []
    for i, own in enumerate(vectors):
        away = [
            sum(((a - b) ** 2 for a, b in zip(own, other, strict=True)), Fraction(0))
            for j, other in enumerate(vectors)
            if j != i
        ]
        scores.append(sum(sorted(away)[: len(vectors) - f - 2], Fraction(0)))
    return sorted(sorted(range(len(vectors)), key=lambda i: (scores[i], i))[:keep])


def twin_agreements(deltas: Sequence[Exact]) -> list[float]:
    """u_i . m: of each unit vector with the mean, weighted by 1 / distance to the plain mean.

    One step of Weiszfeld's algorithm towards the geometric median (Pillutla et al. 2022, Algorithm 2).
    """
    units: list[list[float]] = []
    for delta in deltas:
        length = math.sqrt(sum(x * x for x in delta))
        units.append([float(x) / length for x in delta])
    mean = [math.fsum(column) / len(units) for column in zip(*units, strict=True)]
    weights = [1 / math.dist(unit, mean) for unit in units]
    median = [
        math.fsum(w * u[k] for w, u in zip(weights, units, strict=True)) / math.fsum(weights)
        for k in range(N)
    ]
    return [math.fsum(u * m for u, m in zip(unit, median, strict=True)) for unit in units]


# What the coordinator does against them -----------------------------------------------------------


def fleet_of(rng: np.random.Generator, count: int, theta: Theta) -> list[Update]:
    """Updates of a few elements, of all, with and without a patch, in quarters: ties are common."""
    found: list[Update] = []
    for i in range(count):
        values = (rng.integers(-8, 9, N) / 4).astype(np.float32)
        places = np.flatnonzero(rng.random(N) < 0.6).astype(np.uint32)
        some = SparseVector(N, places, values[places])
        delta = [SparseVector(N, None, values), some][i % 2]
        patch = SparseVector(N, places[:2], theta[places[:2]] + 1) if i % 3 == 0 else None
        found.append(Update(f"d{i}", int(rng.integers(1, 9)), theta, patch, delta))
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 10])
@pytest.mark.parametrize("byzantine", ["0", "0.1", "0.3", "0.49"])
def test_coordinate_wise_rules(count: int, byzantine: str) -> None:
    rng = np.random.default_rng(count)
    for _ in range(3):
        theta = (rng.integers(-8, 9, N) / 4).astype(np.float32)
        updates = fleet_of(rng, count, theta)
        columns = [
            [Fraction(float(u.trained[k])) - Fraction(float(theta[k])) for u in updates]
            for k in range(N)
        ]
        twins: dict[Rule, Exact] = {
            "trimmed_mean": twin_trimmed_mean(columns, Fraction(byzantine)),
            "median": twin_median(columns),
        }
        for rule, expected in twins.items():
            found = robust_change(updates, theta, Robust(rule=rule, byzantine=float(byzantine)))
            np.testing.assert_allclose(found, [float(x) for x in expected], rtol=1e-7, atol=0)


@pytest.mark.parametrize("count", [3, 4, 7, 12])
def test_direction(count: int) -> None:
    """In full from half the median on, less in proportion, not at all below 0."""
    rng = np.random.default_rng(count)
    shortened = 0
    for _ in range(3):
        theta = np.zeros(N, np.float32)
        values = (1.5 + rng.integers(-8, 9, (count, N)) / 4).astype(np.float32)
        values[0] *= -1
        deltas = [SparseVector(N, None, row) for row in values]
        updates = [Update(f"d{i}", 1, theta, None, delta) for i, delta in enumerate(deltas)]
        agreements = twin_agreements([exactly(delta.values) for delta in deltas])
        enough = statistics.median(agreements) / 2
        expected = [min(1.0, max(0.0, agreement / enough)) for agreement in agreements]
        found = filter_outliers(updates, Robust(clip=0)).factors
        assert enough > 0 and found == pytest.approx(expected, rel=1e-9)
        shortened += sum(factor < 1 for factor in found)
    assert shortened >= 3


@pytest.mark.parametrize("count", [3, 4, 5, 7, 10, 12])
@pytest.mark.parametrize("byzantine", ["0", "0.1", "0.2", "0.49"])
def test_krum(count: int, byzantine: str) -> None:
    rng = np.random.default_rng(count)
    for _ in range(3):
        theta = (rng.integers(-8, 9, N) / 4).astype(np.float32)
        updates = fleet_of(rng, count, theta)
        changes = [exactly(u.trained - theta) for u in updates]
        f = min(int(Fraction(byzantine) * count), (count - 3) // 2)
        sizes: dict[Rule, int] = {"krum": 1, "multi_krum": count - f - 2}
        for rule, keep in sizes.items():
            filtered = filter_outliers(
                updates, Robust(clip=0, rule=rule, byzantine=float(byzantine))
            )
            kept = [i for i, factor in enumerate(filtered.factors) if factor]
            assert kept == twin_krum(changes, f, keep)


# Under attack -------------------------------------------------------------------------------------

LAYOUT = Layout.of([("fc.weight", (2, 20), Role.PARAMETER), ("fc.bias", (2,), Role.PARAMETER)])
DEVICES, ATTACKERS = 10, 2


class Fleet:
    """Logistic regression on two clouds of points, ten devices with unequal shares of the classes."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.centre = rng.normal(size=20) / 2
        self.data = [
            self._points(rng, int(rng.integers(30, 90)), 0.2 + 0.06 * i) for i in range(DEVICES)
        ]
        self.test = self._points(rng, 2000, 0.5)

    def _points(
        self, rng: np.random.Generator, count: int, share: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        labels = (rng.random(count) < share).astype(np.int64)
        return rng.normal(size=(count, 20)) + np.outer(2 * labels - 1, self.centre), labels

    def delta(self, device: int, theta: Theta) -> NDArray[np.float32]:
        """What five epochs of gradient descent add to theta (n,); attackers send -100 times that."""
        x, y = self.data[device]
        w = theta.astype(np.float64)
        for _ in range(5):
            scores = x @ w[:40].reshape(2, 20).T + w[40:]
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(y)), y] -= 1
            w -= 0.2 * np.concatenate([(p.T @ x).ravel(), p.sum(axis=0)]) / len(y)
        change = w - theta
        return (-100 * change if device < ATTACKERS else change).astype(np.float32)

    def accuracy(self, theta: Theta) -> float:
        x, y = self.test
        scores = x @ theta[:40].reshape(2, 20).T + theta[40:]
        return float((scores.argmax(axis=1) == y).mean())


def learned(fleet: Fleet, robust: Robust, attacked: bool) -> float:
    """Accuracy after ten rounds of FedAvg."""
    strategy = FedAvg()
    context = context_of(LAYOUT, np.zeros(42, np.float32), robust=robust)
    for _ in range(10):
        asked = range(DEVICES) if attacked else range(ATTACKERS, DEVICES)
        updates = [
            Update(
                f"d{i}",
                len(fleet.data[i][1]),
                context.theta,
                None,
                SparseVector(42, None, fleet.delta(i, context.theta)),
            )
            for i in asked
        ]
        context = follow(context, strategy.apply(context, filter_outliers(updates, robust)))
    return fleet.accuracy(context.theta)


@pytest.mark.parametrize("seed", range(2))
def test_two_of_ten_destroy_the_mean(seed: int) -> None:
    fleet = Fleet(seed)
    honest = learned(fleet, OFF, attacked=False)
    assert honest > 0.8
    assert learned(fleet, OFF, attacked=True) < 0.4


OFF = Robust(clip=0, rule="mean", max_weight=0)
RULES: tuple[Rule, ...] = ("direction", "trimmed_mean", "median", "krum", "multi_krum")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "robust", [Robust(clip=2, rule="mean"), *(Robust(clip=0, rule=rule) for rule in RULES)]
)
def test_two_of_ten_do_not_turn_the_others(robust: Robust, seed: int) -> None:
    fleet = Fleet(seed)
    assert learned(fleet, robust, attacked=True) > learned(fleet, OFF, attacked=False) - 0.05


@pytest.mark.parametrize("seed", range(2))
def test_the_default_leaves_honest_devices_alone(seed: int) -> None:
    fleet = Fleet(seed)
    honest = learned(fleet, OFF, attacked=False)
    assert learned(fleet, Robust(), attacked=False) == pytest.approx(honest, abs=0.005)
