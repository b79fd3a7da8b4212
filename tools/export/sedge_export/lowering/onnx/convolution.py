"""Convolutions of any rank and their gradients; the weight's gradient is in ``weight_gradient``.

Letters: B batch, C input channels, O output channels, T taps of the kernel, P output positions, K = B P.

onnxruntime multiplies image by image, P columns at a time, which is slow for small maps with many
channels. For these, one matrix product over the whole batch is faster, forward and backward. Measured
with onnxruntime 1.31, one thread, batch 32, 3 x 3, on AVX2: Conv -> one product (eager torch):

    512 channels, 2 x 2   23 ms -> 8 ms (7)
    512 channels, 4 x 4   26 ms -> 29 ms (19)
    256 channels, 7 x 7   24 ms -> 22 ms (15)
    128 channels, 8 x 8   7 ms -> 9 ms (5)

A step with the input's gradient, on AVX-512: ConvTranspose -> ``_mirrored``, ``_laid_over``:

    512 channels, 2 x 2   51 ms -> 24, 23       512 channels, 4 x 4 by stride 2 to 2 x 2   56 ms -> -, 30
    256 channels, 4 x 4   19 ms -> 16, 18       128 channels, 7 x 7 by stride 2 to 4 x 4   6 ms -> -, 8
    256 channels, 7 x 7   49 ms -> 48, 52
    128 channels, 8 x 8   16 ms -> 17, -
"""

import itertools
import math
from collections.abc import Sequence

import torch

from sedge_export.lowering.onnx.graph import Graph, Value
from sedge_export.lowering.onnx.products import gemm
from sedge_export.lowering.onnx.table import lowers
from sedge_export.lowering.onnx.weight_gradient import Window, seen_by_taps, weight_gradient

aten = torch.ops.aten

# Up to this many output positions, one product over the whole batch is faster. In the backward pass,
# the larger limit applies if all strides are 1.
SMALL_MAP = 8
SMALL_MAP_BACKWARD = 49


@lowers(aten.convolution.default)
def convolution(
    graph: Graph, x: Value, weight: Value, bias: Value | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """Return the convolution or transposed convolution of x with weight."""
    window = Window(weight.shape[2:], stride, padding, dilation)
    small = math.prod(window.positions(x.shape[2:])) <= SMALL_MAP
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
    """Lower a convolution to ONNX's own operator, whatever its number of output positions."""
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
    """Return the weight (O, C, *kernel) as a matrix (O, T C), channels last."""
    last = graph.transpose(weight, [0, *range(2, weight.rank), 1])
    return graph.reshape(last, (weight.shape[0], weight.size // weight.shape[0]))


def _channels_last(x: Value) -> list[int]:
    return [0, *range(2, x.rank), 1]


def _channels_first(x: Value) -> list[int]:
    return [0, x.rank - 1, *range(1, x.rank - 1)]


def _as_product(graph: Graph, x: Value, weight: Value, bias: Value | None, window: Window) -> Value:
    positions = window.positions(x.shape[2:])
    seen = seen_by_taps(graph, x, window, positions)
    turned = graph.transpose(_matrix(graph, weight), [1, 0])  # (T C, O)
    return _product(graph, seen, turned, bias, (x.shape[0], *positions))


def _product(
    graph: Graph, seen: Sequence[Value], weight: Value, bias: Value | None, shape: Sequence[int]
) -> Value:
    """Multiply the taps' inputs (K, C) by the weight (T C, O). Returns a map (B, O, ...).

    ``shape`` is (B, ...), without the channels.
    """
    rows = gemm(graph, graph.concat(seen, 1), weight, bias)  # (K, O)
    shaped = graph.reshape(rows, (*shape, weight.shape[1]))
    return graph.transpose(shaped, _channels_first(shaped))


@lowers(aten.convolution_backward.default)
def convolution_backward(
    graph: Graph, grad: Value, x: Value, weight: Value, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:  # fmt: skip
    """Return the gradients of input, weight and bias, each only if ``output_mask`` requests it."""
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
        # A transposed convolution is a convolution with input and output swapped.
        source, target = (grad, x) if transposed else (x, grad)
        for_weight = weight_gradient(graph, source, target, weight.shape, window, groups)
    if output_mask[2]:
        for_bias = graph.sum(grad, [0, *range(2, grad.rank)])
    return for_input, for_weight, for_bias


def _input_gradient(
    graph: Graph, grad: Value, shape: tuple[int, ...], weight: Value, window: Window, groups: int
) -> Value:
    dense = set(window.stride) == {1}
    if groups == 1 and math.prod(grad.shape[2:]) <= (SMALL_MAP_BACKWARD if dense else SMALL_MAP):
        if dense and grad.shape[2:] == shape[2:]:
            return _mirrored(graph, grad, weight, window)
        return _laid_over(graph, grad, shape, weight, window)
    # Some rows at the end of an axis may not have been reached by any window.
    reached = window.extents(grad.shape[2:])
    unread = [e - r for e, r in zip(shape[2:], reached, strict=True)]
    return _transposed(graph, grad, weight, None, window, unread, groups)


def _mirrored(graph: Graph, grad: Value, weight: Value, window: Window) -> Value:
    """Return the input's gradient as a convolution with the mirrored kernel.

    The output must be as large as the input, so that this convolution has the same padding as the forward
    one.
    """
    outputs, inputs = weight.shape[:2]
    seen = seen_by_taps(graph, grad, window, grad.shape[2:])[::-1]
    by_output = graph.reshape(_matrix(graph, weight), (outputs, len(seen), inputs))
    by_tap = graph.transpose(by_output, [1, 0, 2])
    turned = graph.reshape(by_tap, (len(seen) * outputs, inputs))  # (T O, C)
    return _product(graph, seen, turned, None, (grad.shape[0], *grad.shape[2:]))


def _laid_over(
    graph: Graph, grad: Value, shape: tuple[int, ...], weight: Value, window: Window
) -> Value:
    """Compute the input's gradient as one product, then shift each tap's part into place and add them.

    Each spatial axis is split into whole strides and the offset within a stride, so that every shift is
    a padding.
    """
    batch, positions, inputs = grad.shape[0], grad.shape[2:], shape[1]
    last = graph.transpose(grad, _channels_last(grad))  # (B, ..., O)
    rows = graph.reshape(last, (grad.size // grad.shape[1], grad.shape[1]))  # (K, O)
    spread = gemm(graph, rows, _matrix(graph, weight))  # (K, T C)
    ends = [p + e for p, e in zip(window.padding, shape[2:], strict=True)]
    strides = _whole_strides(window, positions, ends)
    taps = list(itertools.product(*map(range, window.kernel)))
    shares: list[Value] = []
    for tap, share in zip(taps, graph.split(spread, [inputs] * len(taps), 1), strict=True):
        before, after = [0], [0]
        for t, d, s, n, whole in zip(
            tap, window.dilation, window.stride, positions, strides, strict=True
        ):
            shift, rest = divmod(t * d, s)
            before += [shift, rest]
            after += [whole - n - shift, s - 1 - rest]
        apart = [extent for n in positions for extent in (n, 1)]
        placed = graph.reshape(share, (batch, *apart, inputs))
        shares.append(graph.pad(placed, [*before, 0], [*after, 0], 0.0))
    total = graph.op("Sum", *shares, shape=shares[0].shape)
    extents = [n * s for n, s in zip(strides, window.stride, strict=True)]
    joined = graph.reshape(total, (batch, *extents, inputs))
    inner = [(p, end, 1) for p, end in zip(window.padding, ends, strict=True)]
    kept = graph.slice(joined, range(1, joined.rank - 1), inner)
    return graph.transpose(kept, _channels_first(kept))


def _whole_strides(window: Window, positions: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return how many strides cover the last position's last tap and the input's end, for each axis."""
    spans = zip(positions, window.kernel, window.dilation, window.stride, ends, strict=True)
    return [max(n + d * (k - 1) // s, -(-end // s)) for n, k, d, s, end in spans]
