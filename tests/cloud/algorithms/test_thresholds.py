"""How many elements are personal by their scores: exact cases, ties, ends of every range."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_cloud.algorithms.thresholds import above_count, by_energy, count_of, largest_first
from sedge_protocol.errors import LocalError

HUGE = float(np.finfo(np.float32).max)


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


# The share of all scores.


@pytest.mark.parametrize(
    ("scores", "energy", "most", "expected"),
    [
        ((1, 6, 0, 3), 0.5, 1.0, [1]),
        ((1, 6, 0, 3), 0.6, 1.0, [1]),  # exactly 6 of 10
        ((1, 6, 0, 3), 0.61, 1.0, [1, 3]),
        ((1, 6, 0, 3), 0.9, 1.0, [1, 3]),
        ((1, 6, 0, 3), 0.999, 1.0, [0, 1, 3]),
        ((2, 2, 2, 1), 0.2, 1.0, [0, 1, 2]),  # equal scores are in together
        ((2, 2, 2, 1), 0.2, 0.5, []),  # or out, where they are more than half
        ((5, 2, 2, 1), 0.9, 0.5, [0]),
        ((5, 4, 2, 1), 0.9, 0.5, [0, 1]),
        ((0, 0, 0, 0), 0.5, 1.0, []),
        ((3, 2, 1, 0), 0.5, 0.2, []),  # no element is a fifth of four
        ((7,), 0.5, 1.0, [0]),
    ],
)
def test_the_fewest_elements_that_hold_a_share(
    scores: tuple[float, ...], energy: float, most: float, expected: list[int]
) -> None:
    found = by_energy(f32(*scores), energy, most)
    assert found.dtype == np.uint32
    assert found.tolist() == expected


def test_scores_of_any_size_have_a_share() -> None:
    assert by_energy(f32(HUGE, HUGE / 2, 1e-38, HUGE), 0.75, 1.0).tolist() == [0, 3]
    assert by_energy(f32(1e-45, 0, 3e-45), 0.6, 1.0).tolist() == [2]


def test_a_score_that_is_no_number_is_our_bug() -> None:
    with pytest.raises(LocalError, match="index 1 is not finite"):
        by_energy(f32(1, float("nan"), 2), 0.5, 1.0)


# So many.


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, []), (1, [2]), (2, [2]), (3, [0, 2, 3]), (4, [0, 2, 3]), (9, [0, 2, 3])],
)
def test_so_many_of_the_largest(count: int, expected: list[int]) -> None:
    assert above_count(f32(4, 0, 5, 4), count).tolist() == expected


def test_a_share_is_a_decimal() -> None:
    assert count_of(100, 0.29) == 29  # .29 * 100 is 28.999999999999996
    assert (count_of(582_026, 0.01), count_of(99, 0.01), count_of(7, 1.0)) == (5820, 0, 7)


def test_largest_first() -> None:
    assert largest_first(f32(1, 3, 2, 3), 3).tolist() == [3, 3, 2]
    assert largest_first(f32(1, 3), 9).tolist() == [3, 1]
