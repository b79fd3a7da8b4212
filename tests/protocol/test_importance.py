"""Scores by hand; how many lie above a quantile, and which: tables, ties, the short way against sorting."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_protocol.errors import LocalError
from sedge_protocol.importance import Score, importance, kept, positions, select
from sedge_protocol.layout import Layout, Role

LAYOUT = Layout.of(
    [
        ("body", (2, 2), Role.PARAMETER),
        ("mean", (2,), Role.STATISTIC),
        ("head", (3,), Role.PARAMETER),
    ]
)
TENSORS = (LAYOUT.by_name["body"], LAYOUT.by_name["head"])


def vector(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


OWN = vector(1, -2, 3, 4, 100, 100, -1, 0.5, 0)
SHARED = vector(0, 0, 3, 5, 0, 0, 1, 0.25, 0)
GRADIENT = vector(-1, 0.5, 0, 2, 9, 9, 3, -4, 0)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("squared", [1, 4, 0, 1, 4, 0.0625, 0]),
        ("product", [1, 4, 0, 4, 2, 0.125, 0]),
        ("gradient", [1, 0.5, 0, 2, 3, 4, 0]),
        ("fisher", [1, 0.25, 0, 4, 9, 16, 0]),
    ],
)
def test_scores(score: Score, expected: list[float]) -> None:
    before = [theta.copy() for theta in (OWN, SHARED, GRADIENT)]
    found = importance(OWN, SHARED, TENSORS, score, GRADIENT)
    assert found.dtype == np.float32
    assert found.tolist() == expected
    for theta, old in zip((OWN, SHARED, GRADIENT), before, strict=True):
        np.testing.assert_array_equal(theta, old)


@pytest.mark.parametrize("score", ["gradient", "fisher"])
def test_a_score_of_a_gradient_needs_one(score: Score) -> None:
    with pytest.raises(LocalError, match=f"'{score}': there is no gradient"):
        importance(OWN, SHARED, TENSORS, score)


@pytest.mark.parametrize("score", ["squared", "product", "fisher"])
def test_an_enormous_score_is_the_largest_float32(score: Score) -> None:
    own = OWN.copy()
    own[7] = 3e38
    found = importance(own, SHARED, TENSORS, score, own)
    assert found[5] == np.finfo(np.float32).max
    assert select(found, 0.9).tolist() == [5]


def test_positions_are_those_of_the_whole_model() -> None:
    assert positions(np.arange(7, dtype=np.uint32), TENSORS).tolist() == [0, 1, 2, 3, 6, 7, 8]
    assert positions(np.array([1, 2], np.uint32), TENSORS[1:]).tolist() == [7, 8]
    assert positions(np.empty(0, np.uint32), TENSORS).size == 0


@pytest.mark.parametrize(
    ("size", "quantile", "k"),
    [
        (1, 0.0, 0),
        (1, 1.0, 0),
        (2, 0.0, 1),
        (101, 0.29, 71),  # .29 * 100 = 28.999999999999996 in binary
        (101, 0.57, 43),  # .57 * 100 = 56.99999999999999
        (11, 0.7, 3),
        (1001, 1e-05, 1000),
        (10_001, 0.9999, 1),  # .9999 * 10000 = 9999 exactly
        (2**28, 1 - 2**-20, 256),
    ],
)
def test_kept_reads_the_quantile_as_it_is_written(size: int, quantile: float, k: int) -> None:
    assert kept(size, quantile) == k


@pytest.mark.parametrize(
    ("scores", "quantile", "indices"),
    [
        ([], 0.5, []),
        ([7], 0.0, []),
        ([1, 2], 0.0, [1]),
        ([3, 1, 2], 0.5, [0]),
        ([3, 1, 2], 1.0, []),
        ([1, 1, 1, 1], 0.5, []),
        ([2, 2, 1, 1], 0.5, [0, 1]),
        ([2, 2, 2, 1], 0.5, []),  # the 2 largest tie with the third
        ([9, 2, 2, 2, 1], 0.5, [0]),
        ([0, 0, 0, 5, 0], 0.5, [3]),
        ([np.finfo(np.float32).max, 1e-45, 0], 0.0, [0, 1]),
    ],
)
def test_select(scores: list[float], quantile: float, indices: list[int]) -> None:
    chosen = select(np.array(scores, np.float32), quantile)
    assert chosen.dtype == np.uint32
    assert chosen.tolist() == indices


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 9999])
def test_select_refuses_scores_that_are_not_finite(bad: float, place: int) -> None:
    scores = np.ones(10_000, np.float32)
    scores[place] = bad
    with pytest.raises(LocalError, match=f"index {place} "):
        select(scores, 0.9999)


def by_sorting(scores: NDArray[np.float32], k: int) -> list[int]:
    """What select must give: everything above the (k+1)-th largest."""
    return np.flatnonzero(scores > np.sort(scores)[scores.size - 1 - k]).tolist()


@pytest.mark.parametrize("size", [4095, 4096, 20_011])
@pytest.mark.parametrize("values", ["continuous", "ties", "rising", "falling", "periodic", "spike"])
def test_select_takes_the_same_by_groups_and_by_sorting(size: int, values: str) -> None:
    # From 4,096 scores on, and while 32 k <= size, the threshold is found among group maxima.
    rng = np.random.default_rng(size)
    place = np.arange(size)
    scores = {
        "continuous": rng.exponential(size=size),
        "ties": rng.integers(0, 9, size),
        "rising": place,
        "falling": -place,
        "periodic": place % 1024,  # whole groups tie
        "spike": (place >= size - 3) * 1.0,  # beyond the last whole row of groups
    }[values].astype(np.float32)
    before = scores.copy()
    for k in (0, 1, 2, 3, 40, 127, 128, size // 33, size // 31, size // 2, size - 1):
        quantile = 1 - (max(k, 0.5) - 0.5) / (size - 1)
        assert kept(size, quantile) == k
        assert select(scores, quantile).tolist() == by_sorting(scores, k)
    np.testing.assert_array_equal(scores, before)
