"""Cutting channels out of a model and counting them back in."""

import numpy as np
import pytest
from tests.cloud.forms import RESIDUAL, Residual, context_of, layout_of, random_theta

from sedge_cloud.algorithms.averaging import mean_change
from sedge_cloud.algorithms.submodels import WHOLE, ElementMean, form_of, places_of, prefix
from sedge_cloud.strategy import Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import StrategyError

LAYOUT = layout_of(Residual())
THETA = random_theta(LAYOUT, np.random.default_rng(0))
CONTEXT = context_of(LAYOUT, RESIDUAL, THETA, (0.25, 0.5))


def test_whole_models_are_averaged_bit_for_bit_as_ever() -> None:
    rng = np.random.default_rng(4)
    updates: list[Update] = []
    for i, weight in enumerate((3, 50, 1)):
        indices = np.sort(rng.permutation(LAYOUT.size)[:400]).astype(np.uint32)
        delta = SparseVector(LAYOUT.size, indices, rng.normal(size=400).astype(np.float32))
        updates.append(Update(f"d{i}", weight, THETA, delta=delta))
    tally = ElementMean(THETA)
    for update in updates:
        tally.add(update, update.num_examples, WHOLE)
    np.testing.assert_array_equal(tally.change(), mean_change(updates, THETA))


def test_a_width_that_the_run_does_not_have() -> None:
    for width in (-1, 3):
        with pytest.raises(StrategyError, match=f"width {width}: the run has 3"):
            form_of(CONTEXT, width)


def test_a_run_without_axes_has_its_whole_model() -> None:
    form = form_of(context_of(LAYOUT, None, THETA), 0)
    assert form.layout is LAYOUT
    assert form.axes.channels == ()
    form.axes.check(LAYOUT)
    np.testing.assert_array_equal(places_of(form, form, prefix(form)), np.arange(LAYOUT.size))
