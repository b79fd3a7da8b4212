"""The gradient of a convolution's weight.

K = B P rows are the output positions of the whole batch, T the taps of the kernel. Measured with
onnxruntime 1.31, one thread, batch 32, compared with the textbook form, a convolution with swapped axes
(eager torch in brackets):

Many channels: for each tap, the output's gradient (O, K) times the input elements that this tap reads
(K, C). 3 x 3, 64 to 64 channels at 28 x 28, 59 ms -> 33 ms (20); 256 to 256 at 7 x 7, 41 ms -> 23 ms (24).
The inner products of the textbook form are only as long as the kernel.

Few channels, as in a first layer: one product of the elements that all taps read (T C, K) and the output's
gradient (K, O). 5 x 5, 1 to 32 channels at 28 x 28, 2.3 ms -> 1.4 ms; 3 x 3, 3 to 64 at 32 x 32,
11.0 ms -> 4.7 ms. The textbook form is still used where (T C, K) would take more than twice the memory of
the output's gradient, and with a stride, where slices copy single numbers: 7 x 7 by stride 2, 3 to 64
channels at 64 x 64, 12 ms against 25 ms.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sedge_export.lowering.onnx.graph import Attribute, Graph, Value
from sedge_export.lowering.onnx.products import gemm

# With fewer input channels than this, a product for each tap is too narrow (1 to 32 channels, 5 x 5: 0.9 ms
# in the textbook form against 7.9 ms). With more, it is faster (16 to 16, 3 x 3: 3.6 ms against 10.4 ms).
MIN_CHANNELS_FOR_TAPS = 8


@dataclass(frozen=True)
class Window:
    """How a kernel moves over the spatial axes: its settings for each axis."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    @property
    def attributes(self) -> dict[str, Attribute]:
        """The attributes that both Conv and ConvTranspose take."""
        return {
            "kernel_shape": self.kernel,
            "strides": self.stride,
            "pads": [*self.padding, *self.padding],
            "dilations": self.dilation,
        }

    def positions(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Return the number of kernel positions on each axis."""
        spans = zip(extents, self._reaches(), self.stride, self.padding, strict=True)
        return tuple((e + 2 * p - r) // s + 1 for e, r, s, p in spans)

    def extents(self, positions: Sequence[int]) -> tuple[int, ...]:
        """Return the smallest input extents that have this many kernel positions."""
        spans = zip(positions, self._reaches(), self.stride, self.padding, strict=True)
        return tuple((n - 1) * s - 2 * p + r for n, r, s, p in spans)

    def _reaches(self) -> list[int]:
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]


def seen_by_taps(graph: Graph, x: Value, window: Window, positions: Sequence[int]) -> list[Value]:
    """Return the elements of x that each tap of the kernel reads, as (K, C).

    First, x is converted to channels last, so that a slice copies whole rows of C numbers.
    """
    channels = x.shape[1]
    last = graph.transpose(x, [0, *range(2, x.rank), 1])
    parts = _slices(graph, last, 1, window, positions)
    return [graph.reshape(part, (part.size // channels, channels)) for part in parts]


def _slices(
    graph: Graph, x: Value, first: int, window: Window, positions: Sequence[int]
) -> list[Value]:
    """Return what each tap of the kernel reads of x, whose spatial axes begin at axis ``first``."""
    spatial = range(first, first + len(positions))
    margin = [*[0] * first, *window.padding, *[0] * (x.rank - spatial.stop)]
    padded = graph.pad(x, margin, margin, 0.0)
    parts: list[Value] = []
    for tap in itertools.product(*map(range, window.kernel)):
        spans = zip(tap, window.dilation, positions, window.stride, strict=True)
        ranges = [(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in spans]
        parts.append(graph.slice(padded, spatial, ranges))
    return parts


def weight_gradient(
    graph: Graph, x: Value, grad: Value, shape: tuple[int, ...], window: Window, groups: int
) -> Value:
    """Return the gradient (O, C / groups, *kernel) of the weight."""
    if shape[1] == 1 and groups >= MIN_CHANNELS_FOR_TAPS:
        return _depthwise(graph, x, grad, shape, window)
    if groups == 1 and shape[1] >= MIN_CHANNELS_FOR_TAPS:
        return _by_taps(graph, x, grad, shape, window)
    if groups == 1 and max(window.stride) == 1 and math.prod(shape[1:]) <= 2 * shape[0]:
        return _by_columns(graph, x, grad, shape, window)
    return _by_convolution(graph, x, grad, shape, window, groups)


def _by_taps(graph: Graph, x: Value, grad: Value, shape: tuple[int, ...], window: Window) -> Value:
    by_output = graph.transpose(grad, [1, 0, *range(2, x.rank)])
    rows = graph.reshape(by_output, (shape[0], grad.size // shape[0]))  # (O, K)
    taps = seen_by_taps(graph, x, window, grad.shape[2:])
    joined = graph.concat([gemm(graph, rows, seen) for seen in taps], 1)  # (O, T C)
    apart = graph.reshape(joined, (shape[0], len(taps), shape[1]))
    return graph.reshape(graph.transpose(apart, [0, 2, 1]), shape)


def _by_columns(
    graph: Graph, x: Value, grad: Value, shape: tuple[int, ...], window: Window
) -> Value:
    by_channel = graph.transpose(x, [1, 0, *range(2, x.rank)])
    rows = grad.size // shape[0]
    columns = [
        graph.reshape(part, (shape[1], rows))
        for part in _slices(graph, by_channel, 2, window, grad.shape[2:])
    ]
    by_row = graph.reshape(graph.transpose(grad, [0, *range(2, x.rank), 1]), (rows, shape[0]))
    product = gemm(graph, graph.concat(columns, 0), by_row)  # (T C, O)
    apart = graph.reshape(product, (len(columns), shape[1], shape[0]))
    return graph.reshape(graph.transpose(apart, [2, 1, 0]), shape)


def _depthwise(
    graph: Graph, x: Value, grad: Value, shape: tuple[int, ...], window: Window
) -> Value:
    """Compute the gradient for one input channel per group, as products summed over all rows.

    A convolution would take 7 ms for 64 channels, 3 x 3 at 16 x 16, because it would multiply vector by
    vector.
    """
    channels = x.shape[1]
    last = graph.transpose(grad, [0, *range(2, x.rank), 1])
    rows = (grad.size // shape[0], channels, shape[0] // channels)  # (K, C, O / C)
    by_channel = graph.reshape(last, rows)
    sums = [
        graph.sum(graph.mul(graph.reshape(seen, (*rows[:2], 1)), by_channel), [0])
        for seen in seen_by_taps(graph, x, window, grad.shape[2:])
    ]
    columns = graph.concat([graph.reshape(each, (shape[0], 1)) for each in sums], 1)  # (O, T)
    return graph.reshape(columns, shape)


def _by_convolution(
    graph: Graph, x: Value, grad: Value, shape: tuple[int, ...], window: Window, groups: int
) -> Value:
    """Compute the textbook form: convolve x with the output's gradient, with batch and channels swapped.

    Stride and dilation are swapped, too. With groups, the batch of each group becomes a group of
    channels.
    """
    batch, extent = x.shape[0], x.shape[2:]
    swapped = [1, 0, *range(2, x.rank)]
    filters = graph.transpose(grad, swapped)  # (O, B, ...)
    grouped = graph.reshape(x, (batch, groups, shape[1], math.prod(extent)))
    turned = graph.transpose(grouped, [2, 1, 0, 3])
    source = graph.reshape(
        turned, (shape[1], groups * batch, *extent)
    )  # (C / groups, groups B, ...)
    exchanged = Window(grad.shape[2:], window.dilation, window.padding, window.stride)
    result = graph.op(
        "Conv",
        source,
        filters,
        shape=(shape[1], shape[0], *exchanged.positions(extent)),
        dtype=x.dtype,
        group=groups,
        **exchanged.attributes,
    )
    # If the windows did not reach all rows, the result has more taps than the kernel.
    taps = graph.slice(result, range(2, x.rank), [(0, size, 1) for size in shape[2:]])
    return graph.transpose(taps, swapped)
