"""The running mean against exact arithmetic, its memory, and what it refuses."""

import weakref
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from sedge_cloud.aggregate import average, weighted_mean
from sedge_cloud.strategy import State, Update
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Layout, Role, Theta

LAYOUT = Layout.of(
    [
        ("norm.weight", (2,), Role.PARAMETER),
        ("norm.running_mean", (3,), Role.STATISTIC),
        ("head.weight", (2,), Role.PARAMETER),
    ]
)


def vector(*values: float) -> Theta:
    return np.array(values, np.float32)


def state(theta: Theta) -> State:
    return State(LAYOUT, theta, initial=np.zeros(7, np.float32), round=4)


@pytest.mark.parametrize("devices", [1, 2, 7])
def test_is_the_exact_mean_rounded_once(devices: int) -> None:
    rng = np.random.default_rng(devices)
    vectors = rng.normal(size=(devices, 50)).astype(np.float32)
    counts = [int(count) for count in rng.integers(1, 5000, devices)]
    mean = weighted_mean(zip(counts, vectors, strict=True), np.zeros(50, np.float32))
    assert mean.dtype == np.float32
    for i in range(50):
        exact = sum(Fraction(float(v[i])) * m for m, v in zip(counts, vectors, strict=True))
        assert mean[i] == np.float32(float(exact / sum(counts)))


def test_equal_vectors_keep_every_bit() -> None:
    theta = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    mean = weighted_mean([(3, theta), (7, theta), (13, theta)], np.zeros(1000, np.float32))
    np.testing.assert_array_equal(mean, theta)


def test_small_update_next_to_a_large_one_is_not_lost() -> None:
    # float32 sums stop counting at 2**24: 2**24 + 1 = 2**24.
    mean = weighted_mean([(2**24, vector(1.0)), (1, vector(1.0)), (1, vector(1.0))], vector(0.0))
    assert mean[0] == 1.0


@pytest.mark.parametrize("weighted", [[], [(0, vector(9, 9))]])
def test_nothing_to_average_gives_a_copy_of_the_old(weighted: list[tuple[float, Theta]]) -> None:
    old = vector(1, 2)
    mean = weighted_mean(weighted, old)
    np.testing.assert_array_equal(mean, old)
    assert not np.shares_memory(mean, old)


def test_holds_one_vector_at_a_time() -> None:
    seen: list[weakref.ref[Theta]] = []
    most_alive = 0

    def updates() -> Iterator[tuple[float, Theta]]:
        nonlocal most_alive
        for i in range(6):
            theta = np.full(100, i, np.float32)
            seen.append(weakref.ref(theta))
            most_alive = max(most_alive, sum(ref() is not None for ref in seen))
            yield 1, theta

    weighted_mean(updates(), np.zeros(100, np.float32))
    assert most_alive <= 2  # the one just made, and the last, still bound in the loop


@pytest.mark.parametrize(
    ("weight", "theta", "message"),
    [
        (1, vector(1, np.nan), "element 1 is nan"),
        (1, vector(np.inf, 1), "element 0 is inf"),
        (-1, vector(1, 1), "weight -1"),
        (float("nan"), vector(1, 1), "weight nan"),
        (1, vector(1), r"shape \(1,\), expected \(2,\)"),
        (1, vector(1, 1).reshape(1, 2), r"shape \(1, 2\), expected \(2,\)"),
    ],
)
def test_refuses(weight: float, theta: Theta, message: str) -> None:
    with pytest.raises(LocalError, match=message):
        weighted_mean([(3, vector(1, 1)), (weight, theta)], vector(0, 0))


def test_average_weighs_by_examples_and_leaves_statistics() -> None:
    old = np.arange(7, dtype=np.float32)
    before = state(old)
    after = average(
        before,
        [
            Update("a", 1, np.full(7, 10, np.float32)),
            Update("b", 3, np.full(7, 20, np.float32)),
        ],
    )
    np.testing.assert_array_equal(after.theta, vector(17.5, 17.5, 2, 3, 4, 17.5, 17.5))
    assert after.round == 5
    assert after.initial is before.initial
    np.testing.assert_array_equal(before.theta, np.arange(7))


def test_average_of_no_update_counts_the_round() -> None:
    after = average(state(np.ones(7, np.float32)), [])
    np.testing.assert_array_equal(after.theta, np.ones(7))
    assert after.round == 5


def test_order_of_the_call_fixes_the_bits() -> None:
    rng = np.random.default_rng(5)
    updates = [
        Update(f"d{i}", int(rng.integers(1, 900)), rng.normal(size=7).astype(np.float32))
        for i in range(20)
    ]
    first = average(state(np.zeros(7, np.float32)), iter(updates)).theta
    again = average(state(np.zeros(7, np.float32)), iter(updates)).theta
    assert first.tobytes() == again.tobytes()
