"""Pooling and its gradients.

Max pooling's gradient goes to the first largest element of a window, as in torch: on ties (flat image
background, anything after ReLU) any other choice is a wrong gradient, and ties are common.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from sedge_export.lowering.onnx.convolution import convolution
from sedge_export.lowering.onnx.graph import FLOAT, INT, Attribute, Graph, Value
from sedge_export.lowering.onnx.table import lowers
from sedge_protocol.errors import ExportError

aten = torch.ops.aten

# Windows up to 3 x 3 are compared element by element. For larger ones, whose work grows with the window's
# area, onnxruntime's own search is faster.
MAX_COMPARED = 9


def _pair(given: Sequence[int], default: Sequence[int]) -> list[int]:
    values = list(given) or list(default)
    return values * 2 if len(values) == 1 else values


class _Pooling(NamedTuple):
    """A pooling's window in both directions, and the shape of its result."""

    kernel: list[int]
    strides: list[int]
    pads: list[int]
    gaps: list[int]
    ceil_mode: bool
    shape: tuple[int, ...]

    @property
    def attributes(self) -> dict[str, Attribute]:
        """Those of MaxPool."""
        return {
            "kernel_shape": self.kernel,
            "strides": self.strides,
            "pads": [*self.pads, *self.pads],
            "dilations": self.gaps,
            "ceil_mode": int(self.ceil_mode),
        }


def _pooling(
    x: Value, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool,
) -> _Pooling:  # fmt: skip
    kernel = _pair(kernel_size, ())
    strides, pads, gaps = _pair(stride, kernel), _pair(padding, ()), _pair(dilation, ())
    positions = [
        _positions(e, k, s, p, d, ceil_mode)
        for e, k, s, p, d in zip(x.shape[2:], kernel, strides, pads, gaps, strict=True)
    ]
    return _Pooling(kernel, strides, pads, gaps, ceil_mode, (*x.shape[:2], *positions))


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(
    graph: Graph, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), dilation: Sequence[int] = (1, 1), ceil_mode: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """The maximum of each window, and the index of its first occurrence in the plane (H W)."""
    how = _pooling(x, kernel_size, stride, padding, dilation, ceil_mode)
    small = 1 < math.prod(how.kernel) <= MAX_COMPARED
    if small and how.gaps == [1, 1] and not any(how.pads) and not ceil_mode:
        return _compared(graph, x, how.kernel, how.strides, list(how.shape[2:]))
    outputs = ((how.shape, FLOAT), (how.shape, INT))
    largest, flat = graph.ops("MaxPool", x, outputs=outputs, **how.attributes)
    # ONNX's indices run through the whole tensor.
    return largest, graph.sub(flat, _plane_starts(graph, x.shape))


def plain_max_pool(
    graph: Graph, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), dilation: Sequence[int] = (1, 1), ceil_mode: bool = False,
) -> tuple[Value, None]:  # fmt: skip
    """The maximum of each window, without indices."""
    how = _pooling(x, kernel_size, stride, padding, dilation, ceil_mode)
    return graph.op("MaxPool", x, shape=how.shape, dtype=x.dtype, **how.attributes), None


def _compared(
    graph: Graph, x: Value, kernel: list[int], strides: list[int], positions: list[int]
) -> tuple[Value, Value]:
    """Max pooling as comparisons of whole tensors: element t of every window is a strided slice.

    onnxruntime finds its indices with a branch per element: 3.4 ms for (32, 32, 24, 24), 2 x 2,
    against 1.1 ms here. With m_t = 1 where element t is below the largest, the first that is not lies,
    by Horner's rule, m_0 (d_1 + m_1 (d_2 + ...)) behind the window's corner, d_t being the distance
    from element t - 1 to element t. Channels last, because slices then copy whole rows.
    """
    last = graph.transpose(x, [0, 2, 3, 1])
    taps = list(itertools.product(*map(range, kernel)))
    # The reshape also keeps onnxruntime from moving the transposes to where slices are slow.
    rows = (x.shape[0], math.prod(positions), x.shape[1])  # (B, P, C)
    elements = [
        graph.reshape(graph.slice(last, [1, 2], _strided(tap, positions, strides)), rows)
        for tap in taps
    ]
    largest = graph.op("Max", *elements, shape=rows)
    width = x.shape[3]
    offset: Value | None = None
    for t in reversed(range(len(taps) - 1)):
        below = graph.cast(graph.compare("Less", elements[t], largest), FLOAT)
        row, column = (after - before for before, after in zip(taps[t], taps[t + 1], strict=True))
        step = graph.scalar(float(row * width + column))
        offset = graph.mul(below, step if offset is None else graph.add(offset, step))
    assert offset is not None  # there are at least two taps
    row_starts = np.arange(positions[0])[:, None] * (strides[0] * width)
    corners = (row_starts + np.arange(positions[1]) * strides[1]).reshape(-1, 1).astype(np.int64)
    places = graph.add(graph.cast(offset, INT), graph.constant(corners))
    found = [graph.reshape(side, (rows[0], *positions, rows[2])) for side in (largest, places)]
    by_channel = [graph.transpose(side, [0, 3, 1, 2]) for side in found]
    return by_channel[0], by_channel[1]


def _strided(
    starts: Sequence[int], counts: Sequence[int], steps: Sequence[int]
) -> list[tuple[int, int, int]]:
    return [
        (start, start + (count - 1) * step + 1, step)
        for start, count, step in zip(starts, counts, steps, strict=True)
    ]


def _positions(extent: int, kernel: int, stride: int, pad: int, gap: int, ceil_mode: bool) -> int:
    room = extent + 2 * pad - gap * (kernel - 1) - 1
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    # A window that would start in the far margin does not count.
    return count - 1 if (count - 1) * stride >= extent + pad else count


def _plane_starts(graph: Graph, shape: tuple[int, ...]) -> Value:
    # A Range node, not a constant of B C numbers in the file; onnxruntime folds it when loading.
    plane = shape[2] * shape[3]
    bounds = [graph.scalar(number, INT) for number in (0, math.prod(shape), plane)]
    starts = graph.op("Range", *bounds, shape=(shape[0] * shape[1],), dtype=INT)
    return graph.reshape(starts, (shape[0], shape[1], 1, 1))


@lowers(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    graph: Graph, grad: Value, x: Value, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: Value,
) -> Value:  # fmt: skip
    """grad at the elements that the windows chose, 0 elsewhere."""
    kernel = _pair(kernel_size, ())
    starts = _plane_starts(graph, x.shape)
    # Channels-last indices stay that way: scattering works in any order.
    indices, order = graph.untransposed(indices)
    inverse = [order.index(axis) for axis in range(4)]
    grad = graph.transpose(grad, inverse)
    flat = graph.add(indices, graph.transpose(starts, inverse))
    sides = [graph.reshape(side, (1, 1, grad.size)) for side in (grad, flat)]
    if all(k <= s for k, s in zip(kernel, _pair(stride, kernel), strict=True)):
        # Disjoint windows choose no element twice, and MaxUnpool, a bare scatter, is five times as fast.
        shape = (1, 1, x.size)
        laid = graph.op("MaxUnpool", *sides, graph.ints(shape), shape=shape, kernel_shape=[1])
        return graph.reshape(laid, x.shape)
    zeros = graph.full((x.size,), 0.0)
    values, places = (graph.reshape(side, (grad.size,)) for side in sides)
    added = graph.op(
        "ScatterElements", zeros, places, values, shape=zeros.shape, axis=0, reduction="add"
    )
    return graph.reshape(added, x.shape)


@lowers(aten.avg_pool2d.default)
def avg_pool(
    graph: Graph, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:  # fmt: skip
    """The mean of each window."""
    kernel = _pair(kernel_size, ())
    strides, pads = _pair(stride, kernel), _pair(padding, ())
    _check_average(ceil_mode, divisor_override)
    positions = [
        _positions(e, k, s, p, 1, False)
        for e, k, s, p in zip(x.shape[2:], kernel, strides, pads, strict=True)
    ]
    return graph.op(
        "AveragePool",
        x,
        shape=(*x.shape[:2], *positions),
        kernel_shape=kernel,
        strides=strides,
        pads=[*pads, *pads],
        count_include_pad=int(count_include_pad),
    )


def _check_average(ceil_mode: bool, divisor_override: int | None) -> None:
    if ceil_mode or divisor_override is not None:
        raise ExportError("average pooling with ceil_mode or divisor_override")


@lowers(aten.avg_pool2d_backward.default)
def avg_pool_backward(
    graph: Graph, grad: Value, x: Value, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Value:  # fmt: skip
    """Each window's gradient divided by its count and laid over the window: a transposed convolution."""
    kernel = _pair(kernel_size, ())
    strides, pads = _pair(stride, kernel), _pair(padding, ())
    _check_average(ceil_mode, divisor_override)
    counts = [
        _counts(e, g, k, s, p, count_include_pad)
        for e, g, k, s, p in zip(x.shape[2:], grad.shape[2:], kernel, strides, pads, strict=True)
    ]
    share = (1.0 / np.outer(counts[0], counts[1])).astype(np.float32)
    shared = graph.mul(grad, graph.constant(share))
    planes = graph.reshape(shared, (x.shape[0] * x.shape[1], 1, *grad.shape[2:]))
    spans = zip(x.shape[2:], grad.shape[2:], kernel, strides, pads, strict=True)
    unread = [e - ((g - 1) * s - 2 * p + k) for e, g, k, s, p in spans]
    ones = graph.constant(np.ones((1, 1, *kernel), np.float32))
    spread = convolution(graph, planes, ones, None, strides, pads, [1, 1], True, unread, 1)
    return graph.reshape(spread, x.shape)


def _counts(
    extent: int, positions: int, kernel: int, stride: int, pad: int, with_margin: bool
) -> list[int]:
    if with_margin:
        return [kernel] * positions
    starts = [position * stride - pad for position in range(positions)]
    return [min(start + kernel, extent) - max(start, 0) for start in starts]


@lowers(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool(graph: Graph, x: Value, output_size: Sequence[int]) -> Value:
    """The mean of each of output_size windows, which must divide the input evenly."""
    return avg_pool(graph, x, _even_windows(x.shape[2:], output_size))


@lowers(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool_backward(graph: Graph, grad: Value, x: Value) -> Value:
    """Each window's gradient divided by its count and laid over the window."""
    kernel = _even_windows(x.shape[2:], grad.shape[2:])
    return avg_pool_backward(graph, grad, x, kernel, kernel, (0, 0), False, True, None)


def _even_windows(extents: Sequence[int], counts: Sequence[int]) -> list[int]:
    if any(extent % count for extent, count in zip(extents, counts, strict=True)):
        raise ExportError(
            f"adaptive pooling of {tuple(extents)} to {tuple(counts)}, which overlaps"
        )
    return [extent // count for extent, count in zip(extents, counts, strict=True)]
