"""What an engine and a strategy hand each other: the next model, and what a device's update says."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.cloud.algorithms.test_averaging import coded
from tests.cloud.contexts import a_layout, context_of

from sedge_cloud.strategy import Change, Context, State, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import StrategyError

Give = Callable[[Context, Change], State]
LAYOUT = a_layout({"norm.weight": (2,), "norm.running_mean": (3,), "head.weight": (2,)})
THETA = np.arange(7, dtype=np.float32)
CONTEXT = context_of(LAYOUT, THETA)


def test_the_next_model_is_a_change_or_a_vector_in_its_place() -> None:
    """Statistics stay, as do the tensors that are named; arrays and groups are the strategy's own."""
    moved = CONTEXT.moved(np.full(7, 10.0))
    assert moved.theta.tolist() == [10, 11, 2, 3, 4, 15, 16]
    assert moved.theta.dtype == np.float32 and moved.is_change
    replaced = CONTEXT.replaced(
        np.full(7, 10, np.float32), {"x": THETA}, {"a": ("b",)}, ["head.weight"]
    )
    assert replaced.theta.tolist() == [10, 10, 2, 3, 4, 5, 6]
    assert (replaced.arrays, replaced.groups) == ({"x": THETA}, {"a": ("b",)})
    assert not replaced.is_change
    assert (moved.arrays, moved.groups) == ({}, {})
    assert THETA.tolist() == list(range(7))


def test_a_change_is_summed_before_it_is_rounded() -> None:
    theta = np.full(7, 2**24, np.float32)
    assert context_of(LAYOUT, theta).moved(np.full(7, 1.5)).theta[0] == np.float32(2**24 + 1.5)


@pytest.mark.parametrize("give", [Context.moved, Context.replaced])
@pytest.mark.parametrize(
    ("vector", "text"),
    [
        (np.zeros(6, np.float32), r"found \(6,\), expected \(7,\)"),
        (np.array([0, np.nan, 0, 0, 0, 0, 0]), "the next model: element 1 is nan, expected finite"),
        (np.full(7, 1e39), r"element 0 is 1e\+39"),  # beyond float32
    ],
)
def test_what_is_no_next_model(give: Give, vector: Change, text: str) -> None:
    with pytest.raises(StrategyError, match=text):
        give(CONTEXT, vector)


def test_only_what_was_sent_is_touched() -> None:
    """A sum that is NaN elsewhere stays so: nothing reads or writes there."""
    old = np.ones(50, np.float32)
    total = np.full(50, np.nan)
    places = np.array([3, 40], np.uint32)
    total[places] = 0
    sent = SparseVector(50, places, np.array([2, 4], np.float32))
    Update("d", 3, old, None, sent).add_change(total, 3.0, old)
    assert total[3] == 6 and total[40] == 12 and np.isnan(total).sum() == 48
    Update("d", 3, old, sent, None).add_change(total, 10.0, old)
    assert total[3] == 16 and total[40] == 42 and np.isnan(total).sum() == 48


@pytest.mark.parametrize("part", [slice(None), slice(0, 20), slice(17, 18)])
@pytest.mark.parametrize(("patch", "delta"), [(None, 7), (5, None), (0, 50), (5, 7)])
def test_a_change_leads_to_the_model(patch: int | None, delta: int | None, part: slice) -> None:
    rng = np.random.default_rng(6)
    old = rng.normal(size=50).astype(np.float32)
    update = Update(
        "d",
        1,
        old,
        None if patch is None else coded(rng, 50, patch),
        None if delta is None else coded(rng, 50, delta),
    )
    for theta in (old, old.copy(), np.zeros(50, np.float32)):
        found = update.change(theta, part)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, (update.trained - theta)[part], atol=2e-6)
        assert not np.shares_memory(found, update.trained)
