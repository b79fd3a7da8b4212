"""How many scores lie above a quantile, and which: tables, ties, and the short way against sorting."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_cloud.obp import kept, select
from sedge_protocol.errors import LocalError


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
@pytest.mark.parametrize("place", [0, 5000, 9999])
def test_select_refuses_scores_that_are_not_finite(bad: float, place: int) -> None:
    scores = np.ones(10_000, np.float32)
    scores[place] = bad
    with pytest.raises(LocalError, match=f"index {place} "):
        select(scores, 0.9999)


def by_sorting(scores: NDArray[np.float32], k: int) -> list[int]:
    """What select must give: everything above the (k+1)-th largest."""
    return np.flatnonzero(scores > np.sort(scores)[scores.size - 1 - k]).tolist()


@pytest.mark.parametrize("size", [4095, 4096, 4097, 20_011, 65_536])
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
