"""Models are fitted well: on masks that have such a model they come near what it would cost to know it."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_protocol.mask_fit import USEFUL_RANK, fit, told_by_each
from sedge_protocol.mask_model import MaskModel, Matrix

Mask = NDArray[np.bool_]


def _truth(rows: int, columns: int, rank: int, level: float, seed: int) -> NDArray[np.float64]:
    """Log-odds of a model of this rank."""
    rng = np.random.default_rng(seed)
    odds = level + rng.normal(0, 1.2, (rows, 1)) + rng.normal(0, 1.2, (1, columns))
    for _ in range(rank):
        odds = odds + rng.normal(0, 1, (rows, 1)) * rng.normal(0, 1, (1, columns))
    return odds


def _drawn(odds: NDArray[np.float64], seed: int) -> Mask:
    chance = 1 / (1 + np.exp(-odds))
    return (np.random.default_rng(seed).random(odds.shape) < chance).reshape(-1)


def _known_bits(odds: NDArray[np.float64], mask: Mask) -> float:
    """What the mask takes once everybody knows the odds."""
    against = np.where(mask, -odds.reshape(-1), odds.reshape(-1))
    return float(np.logaddexp(0, against).sum() / math.log(2))


def _class_bits(model: MaskModel, mask: Mask) -> float:
    """What the mask takes once everybody knows the classes, and the share of each."""
    classes = model.classes()
    total = 0.0
    for found in np.unique(classes):
        members = mask[classes == found]
        share = members.mean()
        if 0 < share < 1:
            total -= members.size * (share * math.log2(share) + (1 - share) * math.log2(1 - share))
    return total


@pytest.mark.parametrize("level", [0.0, -3.0, 2.5])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_mask_of_low_rank_is_told_by_its_model(rank: int, level: float) -> None:
    rows, columns = 500, 800
    odds = _truth(rows, columns, rank, level, 17 * rank + 3)
    mask = _drawn(odds, 5)
    model = fit(mask, Matrix(0, rows, columns))
    assert model.rank >= min(rank, 1)
    assert _class_bits(model, mask) < 1.15 * _known_bits(odds, mask)


def test_further_ranks_tell_more_than_rows_and_columns_do() -> None:
    odds = _truth(400, 800, 3, 0.0, 1)
    mask = _drawn(odds, 2)
    matrix = Matrix(0, 400, 800)
    whole = fit(mask, matrix)
    shares = MaskModel(matrix, whole.rows[:1], whole.columns[:1])
    assert whole.rank >= 3
    assert _class_bits(whole, mask) < 0.8 * _class_bits(shares, mask)


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 5000), (5000, 1), (2, 3000), (3000, 2), (64, 64), (65, 130)]
)
@pytest.mark.parametrize("share", [0.0, 1.0, 0.5, 0.001])
def test_any_mask_has_a_model(shape: tuple[int, int], share: float) -> None:
    rows, columns = shape
    mask = np.random.default_rng(rows).random(rows * columns) < share
    model = fit(mask, Matrix(9, rows, columns))
    assert model.matrix == Matrix(9, rows, columns)
    assert model.rows.shape == (1 + model.rank, rows)
    assert model.columns.shape == (1 + model.rank, columns)
    assert model.rows.dtype == model.columns.dtype == np.int8


def test_rows_and_columns_that_are_all_or_nothing() -> None:
    mask = np.zeros((100, 200), np.bool_)
    mask[::3] = True
    mask[:, ::7] = False
    mask[:, 1::7] = True
    model = fit(mask.reshape(-1), Matrix(0, 100, 200))
    assert _class_bits(model, mask.reshape(-1)) < 0.01 * mask.size


def test_ranks_are_earned_by_what_a_mask_has_to_tell() -> None:
    matrix = Matrix(0, 512, 1024)
    rng = np.random.default_rng(0)
    masks = [rng.random(512 * 1024) < share for share in (1e-4, 0.02, 0.1, 0.5)]
    assert [fit(mask, matrix).rank for mask in masks] == [0, 1, 3, USEFUL_RANK]
    assert told_by_each(masks[3], matrix) == pytest.approx(512 * 1024 / 1536, rel=1e-4)


@pytest.mark.parametrize(("share", "odds"), [(0.0, -50), (1.0, 50), (0.001, -28)])
def test_a_mask_with_little_to_tell_has_one_number(share: float, odds: int) -> None:
    mask = np.zeros(512 * 500, np.bool_)
    mask[: round(share * mask.size)] = True
    model = fit(mask, Matrix(0, 512, 500))
    assert model.rank == 0
    assert set(model.rows.reshape(-1).tolist()) == {odds}
    assert not model.columns.any()
