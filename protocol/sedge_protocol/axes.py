"""Records which channels of a model's tensors belong together, so that a sub-model drops them everywhere.

An axis is a set of channels that several tensors share: the outputs of a convolution are the inputs of its
normalisation and of the next convolution, and a residual connection ties them to the outputs of other
layers. Each dimension of a tensor either runs along an axis or is fixed (kernel extents, classes, the
image's own channels). Along an axis of c channels, a dimension has c * p elements: p adjacent ones per
channel, where p > 1 if an image was flattened.

A narrower form of a model keeps the first ``kept`` channels of every axis; its tensors have the same names,
order and dims as those of the whole model.
"""

import math
from functools import cached_property

import msgspec

from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout

FIXED = -1
# Tolerance for the rounding of binary fractions, so that 0.3 of 10 channels is 3, not 3.0000000000000004.
ROUNDING = 1e-9


def kept(channels: int, dropped: float) -> int:
    """Return the number of an axis's channels that a narrower form of a model keeps.

    ``dropped`` is the share of channels that the form drops (0 to below 1).
    """
    return max(1, math.ceil((1 - dropped) * channels - ROUNDING))


class Axes(msgspec.Struct, frozen=True, dict=True):
    """The axes of a layout: each axis's ``channels``, and the axis of each dimension of every tensor.

    ``dims`` lists the tensors in the layout's order; ``FIXED`` marks a dimension that runs along no axis.
    """

    channels: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]

    def check(self, layout: Layout) -> None:
        """Raise ``CodecError`` unless these axes fit the layout."""
        for axis, channels in enumerate(self.channels):
            if channels < 1:
                raise CodecError(f"axes: axis {axis} of {channels} channels, expected at least 1")
        if len(self.dims) != len(layout.tensors):
            raise CodecError(f"axes: {len(self.dims)} tensors, expected {len(layout.tensors)}")
        for tensor, axes in zip(layout.tensors, self.dims, strict=True):
            if len(axes) != len(tensor.shape):
                raise CodecError(f"axes of {tensor.name!r}: {axes}, expected {len(tensor.shape)}")
            for axis, extent in zip(axes, tensor.shape, strict=True):
                if axis == FIXED:
                    continue
                if not 0 <= axis < len(self.channels) or extent % self.channels[axis]:
                    raise CodecError(
                        f"axes of {tensor.name!r}: axis {axis} of extent {extent}, expected one below "
                        f"{len(self.channels)} whose number of channels divides the extent"
                    )
        if not all(self.used):
            raise CodecError(f"axes: axis {self.used.index(())} belongs to no tensor")

    def narrowed(self, dropped: float) -> "Axes":
        """Return the axes of a form that drops the share ``dropped`` (0 to below 1) of each axis."""
        return Axes(tuple(kept(channels, dropped) for channels in self.channels), self.dims)

    def layout(self, whole: Layout, narrower: "Axes") -> Layout:
        """Return the layout of a narrower form, given its axes.

        These axes and ``whole`` describe the full model.
        """
        return Layout.of(
            (
                tensor.name,
                tuple(
                    extent
                    if axis == FIXED
                    else extent // self.channels[axis] * narrower.channels[axis]
                    for axis, extent in zip(axes, tensor.shape, strict=True)
                ),
                tensor.role,
            )
            for tensor, axes in zip(whole.tensors, self.dims, strict=True)
        )

    @cached_property
    def used(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return for every axis the (tensor, dimension) pairs that run along it."""
        places: list[list[tuple[int, int]]] = [[] for _ in self.channels]
        for number, axes in enumerate(self.dims):
            for dimension, axis in enumerate(axes):
                if axis != FIXED:
                    places[axis].append((number, dimension))
        return tuple(map(tuple, places))
