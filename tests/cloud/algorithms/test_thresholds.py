"""How many elements are personal by their scores: exact cases, ties, ends of every range."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_cloud.algorithms.thresholds import by_energy
from sedge_protocol.errors import LocalError

HUGE = float(np.finfo(np.float32).max)


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


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
        ((4, 0, 5, 4), 0.9, 0.5, [2]),  # of those that tie at the limit none
        ((4, 0, 5, 4), 0.99, 0.75, [0, 2, 3]),
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
