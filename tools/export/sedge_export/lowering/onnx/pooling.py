"""Pooling with ONNX's own operators; the gradients of pooling are in ``rules``."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from sedge_export.lowering.onnx.graph import FLOAT, INT, Graph, Value
from sedge_export.lowering.onnx.table import lowers
from sedge_export.lowering.rules.pooling import axes_of, count_of, counted, even_windows, pair

aten = torch.ops.aten


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(
    graph: Graph, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), dilation: Sequence[int] = (1, 1), ceil_mode: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """Return the maximum of each window, and the index in the plane (H W) of its first occurrence."""
    kernel = pair(kernel_size)
    strides, pads, gaps = pair(stride, kernel), pair(padding), pair(dilation)
    settings = zip(x.shape[2:], kernel, strides, pads, gaps, strict=True)
    shape = (*x.shape[:2], *(count_of(*each, ceil_mode) for each in settings))
    largest, flat = graph.ops(
        "MaxPool", x, outputs=((shape, FLOAT), (shape, INT)), kernel_shape=kernel, strides=strides,
        pads=[*pads, *pads], dilations=gaps, ceil_mode=int(ceil_mode),
    )  # fmt: skip
    # ONNX's indices refer to the whole tensor. If nothing uses them, the subtraction is dropped.
    return largest, graph.sub(flat, _plane_starts(graph, x.shape))


def _plane_starts(graph: Graph, shape: tuple[int, ...]) -> Value:
    # A Range node, which onnxruntime folds on loading, keeps the file smaller than a constant of B C
    # numbers.
    plane = shape[2] * shape[3]
    bounds = [graph.scalar(number, INT) for number in (0, math.prod(shape), plane)]
    starts = graph.op("Range", *bounds, shape=(shape[0] * shape[1],), dtype=INT)
    return graph.reshape(starts, (shape[0], shape[1], 1, 1))


@lowers(aten.avg_pool2d.default)
def avg_pool(
    graph: Graph, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:  # fmt: skip
    """Return the mean of each window, or its sum divided by ``divisor_override`` if that is given."""
    axes = axes_of(x.shape, kernel_size, stride, padding, (1,), ceil_mode)
    plain = not ceil_mode and divisor_override is None
    missing = [(a.count - 1) * a.stride + a.kernel - a.extent - a.padding for a in axes]
    pads = [axis.padding for axis in axes]
    means = graph.op(
        "AveragePool",
        x,
        shape=(*x.shape[:2], *(axis.count for axis in axes)),
        kernel_shape=[axis.kernel for axis in axes],
        strides=[axis.stride for axis in axes],
        pads=[*pads, *(pads if plain else (max(far, 0) for far in missing))],
        count_include_pad=int(count_include_pad or not plain),
    )
    if plain:
        return means
    # onnxruntime divided each window by the size of the whole kernel; correct that.
    rows, columns = (counted(axis, count_include_pad) for axis in axes)
    sizes = (
        np.outer(rows, columns) if divisor_override is None else np.full((1, 1), divisor_override)
    )
    factors = math.prod(axis.kernel for axis in axes) / sizes
    return graph.mul(means, graph.constant(factors.astype(np.float32)))


@lowers(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool(graph: Graph, x: Value, output_size: Sequence[int]) -> Value:
    """Return the mean of each window. Each axis is divided evenly into ``output_size`` windows."""
    return avg_pool(graph, x, even_windows(x.shape[2:], output_size))
