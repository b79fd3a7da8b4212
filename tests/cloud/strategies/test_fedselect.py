"""FedSelect's masks: how they grow, travel through the store, and decide who is averaged."""

import numpy as np
import pytest
from tests.cloud.contexts import context_of

from sedge_cloud.strategies.fedselect import MASK, FedSelect, read_mask, write_mask
from sedge_cloud.strategy import Assignment, ClientModel, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Layout, Role

LAYOUT = Layout.of(
    [
        ("fc.weight", (2, 5), Role.PARAMETER),
        ("fc.bias", (2,), Role.PARAMETER),
        ("norm.running_mean", (2, 1), Role.STATISTIC),
        ("head.weight", (2, 2), Role.PARAMETER),
    ]
)
THETA = np.arange(18, dtype=np.float32)
CONTEXT = context_of(LAYOUT, THETA)


def mask_of(*places: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    mask = np.zeros(18, np.bool_)
    mask[list(places)] = True
    return mask


@pytest.mark.parametrize("size", [1, 16, 17])
def test_a_mask_survives_the_store(size: int) -> None:
    mask = np.random.default_rng(size).random(size) < 0.4
    words = write_mask(mask)
    assert words.dtype == np.float32 and words.shape == (-(-size // 16),)
    np.testing.assert_array_equal(read_mask(words, size), mask)


def test_no_mask_is_empty_and_another_models_is_refused() -> None:
    assert not read_mask(None, 18).any()
    with pytest.raises(StrategyError, match=r"mask: shape \(2,\) in memory, expected \(3,\)"):
        read_mask(write_mask(np.zeros(32, np.bool_)), 33)


def test_grows_by_what_changed_most_in_each_weight() -> None:
    change = np.zeros(18, np.float32)
    change[[1, 4, 7, 10, 12, 15, 17]] = [3, -9, 2, 99, 99, -1, 1]
    grown = FedSelect(rate=0.25, limit=1).grown(mask_of(), change, LAYOUT)
    # A quarter of ten (round half to even) and of four; never a vector, never a statistic.
    assert np.flatnonzero(grown).tolist() == [1, 4, 15]
    # Places 1 and 4 are taken, and what did not change is not chosen.
    again = FedSelect(rate=0.5, limit=1).grown(grown, change, LAYOUT)
    assert np.flatnonzero(again).tolist() == [1, 4, 7, 15, 17]
    assert np.flatnonzero(grown).tolist() == [1, 4, 15]


@pytest.mark.parametrize(("limit", "size"), [(0.0, 0), (0.39, 3), (0.7, 7), (1.0, 9)])
def test_never_grows_beyond_its_limit(limit: float, size: int) -> None:
    rng = np.random.default_rng(0)
    mask = mask_of()
    for _ in range(8):
        mask = FedSelect(rate=0.5, limit=limit).grown(
            mask, rng.normal(size=18).astype(np.float32), LAYOUT
        )
    assert mask[:10].sum() == size  # of the last one, half rounds to none


def test_plans_the_grown_mask_with_own_values() -> None:
    assert FedSelect().plan(CONTEXT, ClientModel()) == Assignment()
    sent = SparseVector(18, np.array([2, 3, 14], np.uint32), np.array([1, -5, 2], np.float32))
    client = ClientModel(THETA * 2, 3, {MASK: write_mask(mask_of(9))}, "d", sent)
    plan = FedSelect(rate=0.1, limit=0.5).plan(CONTEXT, client)
    assert plan.patch is not None and plan.patch.indices is not None
    assert plan.patch.indices.tolist() == [3, 9]
    assert plan.patch.values.tolist() == [6, 18]
    assert np.flatnonzero(read_mask(plan.arrays[MASK], 18)).tolist() == [3, 9]


def test_averages_over_those_who_share() -> None:
    own = SparseVector(18, np.array([0, 1], np.uint32), np.array([50, 60], np.float32))
    delta = SparseVector(18, None, np.full(18, 2, np.float32))
    other = SparseVector(18, np.array([1], np.uint32), np.array([70], np.float32))
    updates = [Update("a", 1, THETA, own, delta), Update("b", 3, THETA, other, None)]
    after = FedSelect().apply(CONTEXT, updates)
    expected = THETA + 0.5  # (1 * 2 + 3 * 0) / 4
    expected[0], expected[1] = THETA[0], THETA[1]  # b's alone, which did not move; nobody's
    expected[12:14] = THETA[12:14]
    np.testing.assert_array_equal(after.theta, expected)
