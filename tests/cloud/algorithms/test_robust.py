"""The rules on plain arrays: what they keep, how far their numbers go, what they do with too little."""

import numpy as np
import pytest

from sedge_cloud.algorithms import robust


@pytest.mark.parametrize("scale", [2.0**-10, 1.0])
@pytest.mark.parametrize(
    ("lengths", "clip", "factors"),
    [
        ([], 5, []),
        ([3], 5, [1]),
        ([1, 2, 3], 5, [1, 1, 1]),
        ([1, 1, 10], 5, [1, 1, 0.5]),
        ([1, 1, 10], 0, [1, 1, 1]),
        # Most devices sent nothing: the median is of those that sent something.
        ([0, 0, 0, 2, 2, 40], 5, [1, 1, 1, 1, 1, 0.25]),
        ([0, 0], 5, [1, 1]),
        ([1, 1, np.inf, np.nan], 5, [1, 1, 0, 0]),
        ([1, np.inf], 0, [1, 0]),
        # Two updates can never tell which of them is wrong.
        ([1, 1000], 5, [1, 1]),
    ],
)
def test_clip_factors(
    lengths: list[float], clip: float, factors: list[float], scale: float
) -> None:
    assert robust.clip_factors([scale * length for length in lengths], clip) == factors


@pytest.mark.parametrize(
    ("among", "factors"),
    [
        ([2, 0, np.inf], [1, 0.1, 1, 0]),  # of those that are any
        ([100], [1, 1, 1, 0]),
        ([], [1, 1, 1, 0]),
    ],
)
def test_lengths_compared_among_others(among: list[float], factors: list[float]) -> None:
    assert robust.clip_factors([1, 100, 0, np.nan], 5, among) == factors


@pytest.mark.parametrize(
    ("claimed", "max_weight", "counted"),
    [
        ([], 100, []),
        ([10, 20, 300], 100, [10, 20, 300]),
        ([10, 20, 2**40], 100, [10, 20, 2000]),
        ([10, 20, 2**40], 0, [10, 20, 2**40]),
        ([1, 2, 9, 9], 1.5, [1, 2, 8, 8]),
        ([1, 1, 5], 0.5, [1, 1, 1]),
        # Two devices can never tell which of them is wrong.
        ([10, 2**40], 100, [10, 2**40]),
    ],
)
def test_counted_examples(claimed: list[int], max_weight: float, counted: list[int]) -> None:
    assert robust.counted_examples(claimed, max_weight) == counted


@pytest.mark.parametrize(
    ("byzantine", "count", "wrong"),
    [(0.2, 10, 2), (0.29, 100, 29), (0.3, 9, 2), (0.0, 50, 0), (0.07, 100, 7), (0.49, 3, 1)],
)
def test_counts_the_wrong_as_written(byzantine: float, count: int, wrong: int) -> None:
    assert robust.Robust(byzantine=byzantine).wrong(count) == wrong


def test_of_two_directions_neither_is_wrong() -> None:
    assert robust.agreement_factors([1.0, 0.1]) == [1, 1]
    assert robust.agreement_factors([1.0, 0.1, 1.0]) == [1, 0.2, 1]


def gram(points: list[list[float]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    vectors = np.array(points, np.float64)
    return vectors @ vectors.T


@pytest.mark.parametrize("count", [0, 1, 2])
def test_krum_of_too_few_keeps_all(count: int) -> None:
    assert robust.krum(np.eye(count), 1, "krum") == list(range(count))


def test_equal_scores_keep_the_first() -> None:
    assert robust.krum(gram([[1.0]] * 5), 1, "krum") == [0]
    assert robust.krum(gram([[1.0]] * 5), 1, "multi_krum") == [0, 1]


def test_infinite_changes_are_trimmed_away() -> None:
    values = np.array([[np.inf], [1], [2], [3], [-np.inf]], np.float32)
    assert robust.coordinate_wise(values, "trimmed_mean", 1).tolist() == [2]
