"""Sub-models: cuts some channels of every axis out of a model's theta, and puts them back.

A sub-model is chosen by one set of channel indices per axis. The sets select elements of every tensor along
its axes; the sub-model is theta at these places, in the layout of a narrower form. HeteroFL, FedRolex and
the fixed slices of SubFLOT differ only in the index sets. n is the number of elements in the whole model, m
that in a narrower form.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.strategy import Context, Update, Width
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Layout, Theta

# The places of a sub-model's elements in the whole theta.
Places: TypeAlias = NDArray[np.intp] | slice
# For each axis, the indices in the whole model of the channels that a form has, in the form's order.
Channels: TypeAlias = Sequence[NDArray[np.intp]]

WHOLE = slice(None)


@dataclass(frozen=True)
class Form:
    """One form of a run's model: its layout, and its axes with their numbers of channels."""

    layout: Layout
    axes: Axes


def form_of(context: Context, width: int) -> Form:
    """Return the form of ``Context.widths[width]``. In a model without axes, every dimension is fixed.

    Raises ``StrategyError`` for a width that the run does not have.
    """
    widths = context.widths or (Width(0.0, context.layout),)
    if not 0 <= width < len(widths):
        raise StrategyError(f"width {width}: the run has {len(widths)}")
    fixed = Axes((), tuple((FIXED,) * len(tensor.shape) for tensor in context.layout.tensors))
    return Form(widths[width].layout, (context.axes or fixed).narrowed(widths[width].dropped))


def prefix(form: Form) -> Channels:
    """Return the first channels of every axis, as many as the form has."""
    return [np.arange(channels) for channels in form.axes.channels]


def rolled(form: Form, whole: Axes, shift: int) -> Channels:
    """Return as many channels of every axis as the form has, starting at ``shift`` and wrapping around."""
    return [
        (np.arange(kept) + shift) % channels
        for kept, channels in zip(form.axes.channels, whole.channels, strict=True)
    ]


def places_of(whole: Form, form: Form, channels: Channels) -> NDArray[np.intp]:
    """Return the places (m,) in the whole theta (n,) that make up a form with these channels."""
    places = np.empty(form.layout.size, np.intp)
    for tensor, target, axes in zip(
        whole.layout.tensors, form.layout.tensors, whole.axes.dims, strict=True
    ):
        flat = np.array(0)
        for axis, extent in zip(axes, tensor.shape, strict=True):
            chosen = np.arange(extent)
            if axis != FIXED:  # each channel has p adjacent elements
                by_channel = chosen.reshape(whole.axes.channels[axis], -1)
                chosen = by_channel[channels[axis]].ravel()
            flat = np.add.outer(flat * extent, chosen)
        places[target.slice] = flat.ravel() + tensor.offset
    return places


class ElementMean:
    """Accumulates the mean of each element over the devices that have it.

        theta'_k = theta_k + sum_{i has k} w_i (theta_i,k - theta_k) / sum_{i has k} w_i

    An element that no device has keeps its value. Sums are in float64, as in averaging.py.
    """

    def __init__(self, theta: Theta) -> None:
        self._theta = theta
        self._total = np.zeros(theta.size)
        self._weights = np.zeros(theta.size)

    def add(self, update: Update, weight: float, places: Places) -> None:
        """Add an update whose elements are at ``places``. A slice stands for the whole model."""
        if isinstance(places, slice):
            self._weights += weight
            update.add_change(self._total, weight, self._theta)
        else:
            self.add_vector(update.trained, weight, places)

    def add_vector(
        self, theta: Theta, weight: float, places: Places, cover: Theta | None = None
    ) -> None:
        """Add a model (m,) at ``places``; ``cover`` (m,) is 0 for elements that it lacks."""
        weights = np.float64(weight) if cover is None else weight * cover.astype(np.float64)
        change = np.subtract(theta, self._theta[places], dtype=np.float64)
        self._total[places] += weights * change
        self._weights[places] += weights

    def change(self) -> NDArray[np.float64]:
        """Return theta' - theta (n,), which is 0 for elements that no device has."""
        np.divide(self._total, self._weights, out=self._total, where=self._weights > 0)
        return self._total


def count_change(
    context: Context,
    updates: Iterable[Update],
    places: Callable[[int], Places],
    weight: Callable[[Update], float],
) -> NDArray[np.float64]:
    """Compute the change (n,) from the global model to each element's mean over models that trained it.

    ``places`` returns the places of a width's elements, and is called once per width.
    """
    mean = ElementMean(context.theta)
    by_width: dict[int, Places] = {0: WHOLE}
    for update in updates:
        if update.width not in by_width:
            by_width[update.width] = places(update.width)
        mean.add(update, weight(update), by_width[update.width])
    return mean.change()
