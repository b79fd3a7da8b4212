"""Pooling by ONNX's own operators; its gradients are in ``rules``."""

import math
from collections.abc import Sequence

import torch

from sedge_export.lowering.onnx.graph import FLOAT, INT, Graph, Value
from sedge_export.lowering.onnx.table import lowers
from sedge_export.lowering.rules.pooling import count_of, even_windows, pair
from sedge_protocol.errors import ExportError

aten = torch.ops.aten


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(
    graph: Graph, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), dilation: Sequence[int] = (1, 1), ceil_mode: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """The maximum of each window, and the index of its first occurrence in the plane (H W)."""
    kernel = pair(kernel_size)
    strides, pads, gaps = pair(stride, kernel), pair(padding), pair(dilation)
    settings = zip(x.shape[2:], kernel, strides, pads, gaps, strict=True)
    shape = (*x.shape[:2], *(count_of(*each, ceil_mode) for each in settings))
    largest, flat = graph.ops(
        "MaxPool", x, outputs=((shape, FLOAT), (shape, INT)), kernel_shape=kernel, strides=strides,
        pads=[*pads, *pads], dilations=gaps, ceil_mode=int(ceil_mode),
    )  # fmt: skip
    # ONNX's indices run through the whole tensor. Where nothing reads them, none are computed.
    return largest, graph.sub(flat, _plane_starts(graph, x.shape))


def _plane_starts(graph: Graph, shape: tuple[int, ...]) -> Value:
    # A Range node, not a constant of B C numbers in the file; onnxruntime folds it when loading.
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
    """The mean of each window."""
    if ceil_mode or divisor_override is not None:
        raise ExportError("average pooling with ceil_mode or divisor_override")
    kernel = pair(kernel_size)
    strides, pads = pair(stride, kernel), pair(padding)
    settings = zip(x.shape[2:], kernel, strides, pads, (1, 1), strict=True)
    return graph.op(
        "AveragePool",
        x,
        shape=(*x.shape[:2], *(count_of(*each, ceil_mode) for each in settings)),
        kernel_shape=kernel,
        strides=strides,
        pads=[*pads, *pads],
        count_include_pad=int(count_include_pad),
    )


@lowers(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool(graph: Graph, x: Value, output_size: Sequence[int]) -> Value:
    """The mean of each of output_size windows, which must divide the input evenly."""
    return avg_pool(graph, x, even_windows(x.shape[2:], output_size))
