"""FedSelect's masks: how they grow, travel through the store, and decide who is averaged."""

import numpy as np
import pytest
from tests.cloud.contexts import context_of

from sedge_cloud.strategies.fedselect import MASK, FedSelect, read_mask, write_mask
from sedge_cloud.strategy import Assignment, ClientModel
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


def test_plans_the_grown_mask_with_own_values() -> None:
    assert FedSelect().plan(CONTEXT, ClientModel()) == Assignment()
    sent = SparseVector(18, np.array([2, 3, 14], np.uint32), np.array([1, -5, 2], np.float32))
    client = ClientModel(THETA * 2, 3, {MASK: write_mask(mask_of(9))}, "d", sent)
    plan = FedSelect(rate=0.1, limit=0.5).plan(CONTEXT, client)
    assert plan.patch is not None and plan.patch.indices is not None
    assert plan.patch.indices.tolist() == [3, 9]
    assert plan.patch.values.tolist() == [6, 18]
    assert np.flatnonzero(read_mask(plan.arrays[MASK], 18)).tolist() == [3, 9]


def test_tensors_too_small_for_a_personal_element_are_said() -> None:
    assert not FedSelect(rate=0.2).remarks([LAYOUT])
    (said,) = FedSelect().remarks([LAYOUT])
    assert said.startswith(
        "fedselect: rate 0.05 and limit 0.3 of the model's tensors make no element"
    )
