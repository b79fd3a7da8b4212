"""Convolutions of any rank and their gradients; the weight's gradient is in ``weight_gradient``.

Letters: B batch, C input channels, O output channels, T taps of the kernel, P output positions, K = B P.

onnxruntime multiplies image by image, P columns at a time, which is slow for small maps with many channels.
There one matrix product over the whole batch is faster, forward and backward. Measured with onnxruntime
1.31, one thread, batch 32, 3 x 3: Conv or ConvTranspose -> one product (eager torch):
    512 channels, 2 x 2   forward 23 ms -> 8 ms (7)   backward 52 ms -> 10 ms (7)
    512 channels, 4 x 4   forward 26 ms -> 29 ms (19) backward 53 ms -> 33 ms (20)
    256 channels, 7 x 7   forward 24 ms -> 22 ms (15) backward 29 ms -> 25 ms (15)
    128 channels, 8 x 8   forward 7 ms -> 9 ms (5)    backward 8 ms -> 11 ms (6)
"""

import itertools
import math
from collections.abc import Sequence

import torch

from sedge_export.graph import Graph, Value
from sedge_export.lowering.products import gemm
from sedge_export.lowering.table import lowers
from sedge_export.lowering.weight_gradient import Window, seen_by_taps, weight_gradient

aten = torch.ops.aten

# Up to this many positions one product over the batch is faster.
SMALL_MAP_FORWARD = 8
SMALL_MAP_BACKWARD = 49


@lowers(aten.convolution.default)
def convolution(
    graph: Graph, x: Value, weight: Value, bias: Value | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """The convolution or transposed convolution of x with weight."""
    window = Window(weight.shape[2:], stride, padding, dilation)
    small = math.prod(window.positions(x.shape[2:])) <= SMALL_MAP_FORWARD
    if small and groups == 1 and not transposed:
        return _as_product(graph, x, weight, bias, window)
    return plain_convolution(
        graph, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def plain_convolution(
    graph: Graph, x: Value, weight: Value, bias: Value | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """The same as ONNX's own operator, whatever the size of the map."""
    window = Window(weight.shape[2:], stride, padding, dilation)
    if transposed:
        return _transposed(graph, x, weight, bias, window, output_padding, groups)
    return graph.op(
        "Conv",
        x,
        weight,
        bias,
        shape=(x.shape[0], weight.shape[0], *window.positions(x.shape[2:])),
        dtype=x.dtype,
        group=groups,
        **window.attributes,
    )


def _transposed(
    graph: Graph, x: Value, weight: Value, bias: Value | None, window: Window,
    extra: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    extents = [e + o for e, o in zip(window.extents(x.shape[2:]), extra, strict=True)]
    return graph.op(
        "ConvTranspose",
        x,
        weight,
        bias,
        shape=(x.shape[0], weight.shape[1] * groups, *extents),
        output_padding=extra,
        dtype=x.dtype,
        group=groups,
        **window.attributes,
    )


def _matrix(graph: Graph, weight: Value) -> Value:
    """The weight (O, C, *kernel) as a matrix (O, T C), channels last."""
    last = graph.transpose(weight, [0, *range(2, weight.rank), 1])
    return graph.reshape(last, (weight.shape[0], weight.size // weight.shape[0]))


def _channels_last(x: Value) -> list[int]:
    return [0, *range(2, x.rank), 1]


def _channels_first(x: Value) -> list[int]:
    return [0, x.rank - 1, *range(1, x.rank - 1)]


def _as_product(graph: Graph, x: Value, weight: Value, bias: Value | None, window: Window) -> Value:
    positions = window.positions(x.shape[2:])
    seen = graph.concat(seen_by_taps(graph, x, window, positions), 1)  # (K, T C)
    turned = graph.transpose(_matrix(graph, weight), [1, 0])
    rows = gemm(graph, seen, turned, bias)  # (K, O)
    shaped = graph.reshape(rows, (x.shape[0], *positions, weight.shape[0]))
    return graph.transpose(shaped, _channels_first(shaped))


@lowers(aten.convolution_backward.default)
def convolution_backward(
    graph: Graph, grad: Value, x: Value, weight: Value, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:  # fmt: skip
    """The gradients of input, weight and bias, each only if the mask asks for it."""
    window = Window(weight.shape[2:], stride, padding, dilation)
    for_input = for_weight = for_bias = None
    if output_mask[0] and transposed:
        none = [0] * len(stride)
        for_input = convolution(
            graph, grad, weight, None, stride, padding, dilation, False, none, groups
        )
    elif output_mask[0]:
        for_input = _input_gradient(graph, grad, x.shape, weight, window, groups)
    if output_mask[1]:
        # A transposed convolution is a convolution from its output to its input.
        source, target = (grad, x) if transposed else (x, grad)
        for_weight = weight_gradient(graph, source, target, weight.shape, window, groups)
    if output_mask[2]:
        for_bias = graph.sum(grad, [0, *range(2, grad.rank)])
    return for_input, for_weight, for_bias


def _input_gradient(
    graph: Graph, grad: Value, shape: tuple[int, ...], weight: Value, window: Window, groups: int
) -> Value:
    small = math.prod(grad.shape[2:]) <= SMALL_MAP_BACKWARD and set(window.stride) == {1}
    if groups == 1 and small:
        return _laid_over(graph, grad, shape, weight, window)
    # The rows at the far end that the stride did not reach.
    reached = window.extents(grad.shape[2:])
    unread = [e - r for e, r in zip(shape[2:], reached, strict=True)]
    return _transposed(graph, grad, weight, None, window, unread, groups)


def _laid_over(
    graph: Graph, grad: Value, shape: tuple[int, ...], weight: Value, window: Window
) -> Value:
    """Every tap's share of the gradient from one product, shifted to the tap's position and added up."""
    last = graph.transpose(grad, _channels_last(grad))  # (B, ..., O)
    rows = graph.reshape(last, (grad.size // grad.shape[1], grad.shape[1]))  # (K, O)
    spread = gemm(graph, rows, _matrix(graph, weight))  # (K, T C)
    taps = list(itertools.product(*map(range, window.kernel)))
    shares: list[Value] = []
    for tap, share in zip(taps, graph.split(spread, [shape[1]] * len(taps), 1), strict=True):
        before = [t * d for t, d in zip(tap, window.dilation, strict=True)]
        after = [
            (k - 1 - t) * d for t, k, d in zip(tap, window.kernel, window.dilation, strict=True)
        ]
        placed = graph.reshape(share, (*last.shape[:-1], shape[1]))
        shares.append(graph.pad(placed, [0, *before, 0], [0, *after, 0], 0.0))
    total = graph.op("Sum", *shares, shape=shares[0].shape)
    inner = [(p, p + e, 1) for p, e in zip(window.padding, shape[2:], strict=True)]
    kept = graph.slice(total, range(1, total.rank - 1), inner)
    return graph.transpose(kept, _channels_first(kept))
