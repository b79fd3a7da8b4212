"""Views given by strides and an offset, such as slices and their gradients, for both runtimes."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sedge_export.lowering.rules.table import replaces

aten = torch.ops.aten
Range = tuple[int, int, int]


@replaces(aten.as_strided.default)
def as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    """Return the elements of contiguous x that the view selects."""
    ranges = _as_slices(x.shape, size, stride, offset or 0)
    if ranges is None:
        return x.reshape(-1)[_places(size, stride, offset or 0)].reshape(size)
    for axis, bounds in enumerate(ranges):
        x = _cut(x, axis, bounds)
    return x.reshape(size)


@replaces(aten.as_strided_scatter.default)
def as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    """Return x with the elements that the view selects replaced by ``source``."""
    ranges = _as_slices(x.shape, size, stride, offset or 0)
    if ranges is None:
        places = _places(size, stride, offset or 0)
        return x.reshape(-1).index_put((places,), source.reshape(-1)).reshape(x.shape)
    return _written(x, source.reshape([len(range(*bounds)) for bounds in ranges]), ranges, 0)


def _cut(x: Tensor, axis: int, bounds: Range) -> Tensor:
    part: Tensor = x if bounds == (0, x.shape[axis], 1) else aten.slice(x, axis, *bounds)
    return part


def _places(size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Return the memory index of each element of the view."""
    places = np.full(tuple(size), offset, np.int64)
    for axis, step in enumerate(stride):
        places += np.arange(size[axis]).reshape(-1, *[1] * (len(size) - axis - 1)) * step
    return torch.from_numpy(places.reshape(-1))


def _written(x: Tensor, source: Tensor, ranges: Sequence[Range], axis: int) -> Tensor:
    while axis < x.ndim and ranges[axis] == (0, x.shape[axis], 1):
        axis += 1
    if axis == x.ndim:
        return source
    part = _written(_cut(x, axis, ranges[axis]), source, ranges, axis + 1)
    written: Tensor = aten.slice_scatter(x, part, axis, *ranges[axis])
    return written


def _as_slices(
    shape: Sequence[int], size: Sequence[int], stride: Sequence[int], offset: int
) -> list[Range] | None:
    """Express a view of contiguous memory as one slice per axis. Returns None if that is impossible."""
    wanted = [(e, s) for e, s in zip(size, stride, strict=True) if e != 1]
    ranges: list[Range] = []
    for axis, extent in enumerate(shape):
        inner = math.prod(shape[axis + 1 :])
        start, offset = divmod(offset, inner)
        count, step = 1, 1
        if wanted and wanted[0][1] >= inner and wanted[0][1] % inner == 0:
            last = start + wanted[0][1] // inner * (wanted[0][0] - 1)
            if last < extent:
                count, step = wanted[0][0], wanted.pop(0)[1] // inner
        ranges.append((start, start + (count - 1) * step + 1, step))
    return None if wanted else ranges
