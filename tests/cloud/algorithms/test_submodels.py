"""Cutting channels out of a model and counting them back in."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud.forms import PLAIN, RESIDUAL, Plain, Residual, context_of, layout_of, random_theta

from sedge_cloud.algorithms.averaging import mean_change
from sedge_cloud.algorithms.submodels import WHOLE, Tally, form_of, places_of, prefix, rolled
from sedge_cloud.strategy import Update
from sedge_protocol.axes import FIXED
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Theta

LAYOUT = layout_of(Residual())
THETA = random_theta(LAYOUT, np.random.default_rng(0))
CONTEXT = context_of(LAYOUT, RESIDUAL, THETA, (0.25, 0.5))


def by_tensor(theta: Theta, channels: list[NDArray[np.intp]]) -> list[NDArray[np.float32]]:
    """The chosen channels of every tensor of RESIDUAL, dimension by dimension."""
    found: list[NDArray[np.float32]] = []
    for tensor, dims in zip(LAYOUT.tensors, RESIDUAL.dims, strict=True):
        values = theta[tensor.slice].reshape(tensor.shape)
        for place, axis in enumerate(dims):
            if axis != FIXED:
                values = values.take(channels[axis], axis=place)
        found.append(values.ravel())
    return found


@pytest.mark.parametrize("width", [0, 1, 2])
def test_a_sub_model_has_its_channels_of_every_tensor(width: int) -> None:
    form = form_of(CONTEXT, width)
    rng = np.random.default_rng(width)
    channels = [
        rng.permutation(many)[:few].astype(np.intp)
        for many, few in zip(RESIDUAL.channels, form.axes.channels, strict=True)
    ]
    places = places_of(form_of(CONTEXT, 0), form, channels)
    np.testing.assert_array_equal(THETA[places], np.concatenate(by_tensor(THETA, channels)))
    assert np.unique(places).size == form.layout.size


def test_a_channel_behind_a_flattened_image_is_sixteen_elements() -> None:
    layout = layout_of(Plain(32, 64, 512))
    theta = random_theta(layout, np.random.default_rng(1))
    context = context_of(layout, PLAIN, theta, (0.5,))
    whole, half = form_of(context, 0), form_of(context, 1)
    channels = rolled(half, whole.axes, 40)
    assert channels[1].tolist() == [*range(40, 64), *range(8)]
    cut = half.layout.views(theta[places_of(whole, half, channels)])["fc1.weight"]
    full = layout.views(theta)["fc1.weight"].reshape(512, 64, 16)
    expected = full[channels[2]][:, channels[1]].reshape(256, 512)
    np.testing.assert_array_equal(cut, expected)


def test_whole_models_are_averaged_bit_for_bit_as_ever() -> None:
    rng = np.random.default_rng(4)
    updates: list[Update] = []
    for i, weight in enumerate((3, 50, 1)):
        indices = np.sort(rng.permutation(LAYOUT.size)[:400]).astype(np.uint32)
        delta = SparseVector(LAYOUT.size, indices, rng.normal(size=400).astype(np.float32))
        updates.append(Update(f"d{i}", weight, THETA, delta=delta))
    tally = Tally(THETA)
    for update in updates:
        tally.add(update, update.num_examples, WHOLE)
    np.testing.assert_array_equal(tally.change(), mean_change(updates, THETA))


def test_a_width_that_the_run_does_not_have() -> None:
    for width in (-1, 3):
        with pytest.raises(LocalError, match=f"width {width}: the run has 3"):
            form_of(CONTEXT, width)


def test_a_run_without_axes_has_its_whole_model() -> None:
    form = form_of(context_of(LAYOUT, None, THETA), 0)
    assert form.layout is LAYOUT
    assert form.axes.channels == ()
    form.axes.check(LAYOUT)
    np.testing.assert_array_equal(places_of(form, form, prefix(form)), np.arange(LAYOUT.size))
