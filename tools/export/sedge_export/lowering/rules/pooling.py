"""Pooling and its gradients, one axis after the other, for both runtimes.

Ties are common, for example in an image's flat background or after ReLU, and the gradient is wrong
unless they are broken as in torch. ExecuTorch's kernel for the gradient of max pooling gives wrong results
(1.4.1 and 1.5.1), and ExecuTorch has none for average pooling.

As in torch, the gradient of max pooling goes to the first largest element of a window. Along an axis,
masks pass it from tap to tap until one equals the maximum. In the forward pass, columns are reduced
before rows, so the first row with the maximum wins, and in that row the first column.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from sedge_export.lowering.rules.channels import channels_first, channels_last
from sedge_export.lowering.rules.table import replaces
from sedge_export.lowering.rules.windows import WindowAxis
from sedge_protocol.errors import ExportError

aten = torch.ops.aten
# Takes x and y, and returns 1.0 where x < y, else 0.0.
Less: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# The product of this and any normal positive float32 is at least 1. Subnormal numbers are rounding
# errors.
STEEP = 2.0**126
LOWEST = -1e38  # the padding for a maximum; finite, so that no difference is NaN


def positive(x: Tensor) -> Tensor:
    """Return 1.0 where x > 0, else 0.0. XNNPACK has no comparison, but fuses this product and its clamp."""
    mask: Tensor = aten.hardtanh(x * STEEP, 0.0, 1.0)
    return mask


def less(x: Tensor, y: Tensor) -> Tensor:
    """Return 1.0 where x < y, else 0.0, with operators that XNNPACK has."""
    return positive(y - x)


def pair(given: Sequence[int], default: Sequence[int] = ()) -> list[int]:
    """Return the values for both axes of a setting that may be a single number or missing."""
    values = list(given) or list(default)
    return values * 2 if len(values) == 1 else values


def count_of(extent: int, kernel: int, stride: int, margin: int, gap: int, ceil_mode: bool) -> int:
    """Return the number of windows along an axis."""
    room = extent + 2 * margin - gap * (kernel - 1) - 1
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    # A window that would start in the padding at the end does not count.
    return count - 1 if (count - 1) * stride >= extent + margin else count


def axes_of(
    shape: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool,
) -> list[WindowAxis]:  # fmt: skip
    """Return the rows and columns of an image (B, C, H, W), as axes of (B, H, W, C)."""
    kernel = pair(kernel_size)
    settings = zip(
        shape[-2:], kernel, pair(stride, kernel), pair(padding), pair(dilation), strict=True
    )
    return [
        WindowAxis(1 + n, extent, count_of(extent, k, s, p, d, ceil_mode), k, s, p, d)
        for n, (extent, k, s, p, d) in enumerate(settings)
    ]


def _largest(taps: Sequence[Tensor]) -> Tensor:
    return reduce(torch.maximum, taps)


@replaces(aten.max_pool2d_with_indices.default)
def max_pool(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the maximum of each window.

    The second result is a placeholder for the indices, which the gradient does not use.
    """
    largest = channels_last(x)
    for axis in reversed(axes_of(x.shape, kernel_size, stride, padding, dilation, ceil_mode)):
        largest = _largest(axis.taps(largest, LOWEST))
    result = channels_first(largest)
    return result, result.to(torch.int64)


@replaces(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    grad: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: Tensor,
    less: Less = less,
) -> Tensor:  # fmt: skip
    """Pass the gradient of each window to its first largest element, which ``less`` finds."""
    rows, columns = axes_of(x.shape, kernel_size, stride, padding, dilation, ceil_mode)
    by_column = columns.taps(channels_last(x), LOWEST)
    by_row = rows.taps(_largest(by_column), LOWEST)
    for_rows = rows.sum(_handed_on(channels_last(grad), by_row, less))
    return channels_first(columns.sum(_handed_on(for_rows, by_column, less)))


def _handed_on(grad: Tensor, taps: Sequence[Tensor], less: Less) -> list[Tensor]:
    """Divide the gradient of the taps' maximum among the taps: all of it goes to the first largest one."""
    largest = _largest(taps)
    parts: list[Tensor] = []
    for tap in taps[:-1]:
        rest = grad * less(tap, largest)
        parts.append(grad - rest)
        grad = rest
    return [*parts, grad]


@replaces(aten.avg_pool2d.default)
def avg_pool(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the mean of each window, or its sum divided by ``divisor_override`` if that is given."""
    axes = axes_of(x.shape, kernel_size, stride, padding, (1,), ceil_mode)
    total = channels_last(x)
    for axis in axes:
        total = reduce(torch.add, axis.taps(total))
    return channels_first(_shared(total, axes, count_include_pad, divisor_override))


@replaces(aten.avg_pool2d_backward.default)
def avg_pool_backward(
    grad: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    """Spread the gradient of each window over its elements, divided by their number."""
    axes = axes_of(x.shape, kernel_size, stride, padding, (1,), ceil_mode)
    laid = _shared(channels_last(grad), axes, count_include_pad, divisor_override)
    for axis in axes:
        laid = axis.sum([laid] * axis.kernel)
    return channels_first(laid)


def _shared(
    windows: Tensor, axes: Sequence[WindowAxis], with_margin: bool, divisor: int | None
) -> Tensor:
    """Divide each window's value (B, H, W, C) by the number of its elements, or by the divisor."""
    counts = [counted(axis, with_margin) for axis in axes]
    if divisor is not None or all(len({*each}) == 1 for each in counts):
        return windows * (1.0 / (divisor or math.prod(each[0] for each in counts)))
    for number, each in enumerate(counts):
        sizes = torch.from_numpy(np.array(each, np.float32)).to(windows.dtype)
        windows = windows / sizes.reshape(-1, *[1] * (2 - number))
    return windows


def counted(axis: WindowAxis, with_margin: bool) -> list[float]:
    """Return the number of elements in each window, with or without padding.

    Elements beyond the padding never count.
    """
    far = axis.padding if with_margin else 0
    starts = [at * axis.stride - axis.padding for at in range(axis.count)]
    return [
        float(min(start + axis.kernel, axis.extent + far) - max(start, -far)) for start in starts
    ]


@replaces(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Return the mean of each window. Each axis is divided evenly into ``output_size`` windows."""
    return avg_pool(x, even_windows(x.shape[-2:], output_size))


@replaces(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Spread the gradient of each window over its elements, divided by their number."""
    kernel = even_windows(x.shape[-2:], grad.shape[-2:])
    return avg_pool_backward(grad, x, kernel, kernel, (0,), False, True, None)


def even_windows(extents: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return the window sizes of an adaptive pool.

    Raises ``ExportError`` if the windows are not of equal size.
    """
    pairs = list(zip(extents, counts, strict=True))
    if any(extent % count for extent, count in pairs):
        raise ExportError(
            f"adaptive pooling of {tuple(extents)} to {tuple(counts)}, whose windows overlap"
        )
    return [extent // count for extent, count in pairs]
