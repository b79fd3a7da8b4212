"""Convolutions of any rank and their gradients, as matrix products.

Letters: B batch, G groups, C input and O output channels of a group, T taps of the kernel, K = B x
output positions. Activations inside this module are channels last. ``_columns`` lays out the elements
that each window reads as (G, K, T C). It handles one axis after the other, so the taps of the last axis
vary slowest.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sedge_export.lowering.executorch.products import column_sums
from sedge_export.lowering.onnx.weight_gradient import Window
from sedge_export.lowering.rules.channels import channels_first, channels_last
from sedge_export.lowering.rules.table import replaces
from sedge_export.lowering.rules.windows import WindowAxis

aten = torch.ops.aten

# With fewer channels than this, the rows of a tap are too short to be copied one by one, so the taps
# become the first axis instead.
MIN_CHANNELS_LAST = 8


@replaces(aten.convolution.default)
def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """Return the convolution or transposed convolution of x with weight."""
    window = Window(weight.shape[2:], stride, padding, dilation)
    if transposed:
        reached = window.extents(x.shape[2:])
        extents = [e + o for e, o in zip(reached, output_padding, strict=True)]
        result = _spread(channels_last(x), weight, window, groups, extents)
    else:
        result = _product(channels_last(x), weight, window, groups)
    return channels_first(result if bias is None else result + bias)


@replaces(aten.convolution_backward.default)
def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Return the gradients of input, weight and bias, each only if ``output_mask`` requests it."""
    window = Window(weight.shape[2:], stride, padding, dilation)
    grads, inputs = channels_last(grad), channels_last(x)
    for_input = for_weight = for_bias = None
    if output_mask[0] and transposed:
        for_input = channels_first(_product(grads, weight, window, groups))
    elif output_mask[0]:
        for_input = channels_first(_spread(grads, weight, window, groups, x.shape[2:]))
    if output_mask[1]:
        # A transposed convolution is a convolution with input and output swapped.
        source, target = (grads, inputs) if transposed else (inputs, grads)
        for_weight = _weight_gradient(source, target, weight.shape, window, groups)
    if output_mask[2]:
        for_bias = column_sums(grads)
    return for_input, for_weight, for_bias


def _axes(window: Window, extents: Sequence[int], positions: Sequence[int]) -> list[WindowAxis]:
    settings = zip(
        extents,
        positions,
        window.kernel,
        window.stride,
        window.padding,
        window.dilation,
        strict=True,
    )
    return [WindowAxis(1 + number, *setting) for number, setting in enumerate(settings)]


def _matrices(weight: Tensor, groups: int) -> Tensor:
    """Return the weight (G O, C, *kernel) as matrices (G, O, T C), taps in the order of ``_columns``."""
    ordered = weight.permute(0, *reversed(range(2, weight.ndim)), 1)
    return ordered.reshape(groups, len(weight) // groups, weight[0].numel())


def _rows(x: Tensor, groups: int) -> Tensor:
    """Return x (B, ..., G C) as matrices (G, K, C)."""
    return x.reshape(-1, groups, x.shape[-1] // groups).permute(1, 0, 2)


def _columns(x: Tensor, window: Window, groups: int, positions: Sequence[int]) -> Tensor:
    """Return the elements of x (B, ..., G C) that each window reads, as matrices (G, K, T C)."""
    axes = _axes(window, x.shape[1:-1], positions)
    channels = x.shape[-1] // groups
    if x.shape[-1] >= MIN_CHANNELS_LAST:
        for axis in axes:
            x = torch.cat(axis.taps(x), -1)
        x = x.reshape(-1, math.prod(window.kernel), groups, channels).permute(2, 0, 1, 3)
    else:
        x = x.permute(x.ndim - 1, *range(x.ndim - 1))
        for axis in axes:
            x = torch.cat(replace(axis, axis=axis.axis + 1).taps(x), 0)
        x = x.reshape(math.prod(window.kernel), groups, channels, -1).permute(1, 3, 0, 2)
    return x.reshape(groups, x.shape[1], -1)


def _product(x: Tensor, weight: Tensor, window: Window, groups: int) -> Tensor:
    """Return the convolution of x (B, ..., G C), channels last."""
    positions = window.positions(x.shape[1:-1])
    columns = _columns(x, window, groups, positions)
    result = torch.bmm(columns, _matrices(weight, groups).transpose(1, 2))  # (G, K, O)
    return result.permute(1, 0, 2).reshape(len(x), *positions, len(weight))


def _weight_gradient(
    x: Tensor, grad: Tensor, shape: Sequence[int], window: Window, groups: int
) -> Tensor:
    """Return the gradient of the weight (G O, C, *kernel) for x and grad, both channels last."""
    columns = _columns(x, window, groups, grad.shape[1:-1])
    gradient = torch.bmm(_rows(grad, groups).transpose(1, 2), columns)  # (G, O, T C)
    apart = gradient.reshape(shape[0], *reversed(shape[2:]), shape[1])
    return apart.permute(0, apart.ndim - 1, *reversed(range(1, apart.ndim - 1)))


def _spread(
    grad: Tensor, weight: Tensor, window: Window, groups: int, extents: Sequence[int]
) -> Tensor:
    """Return the transposed convolution of grad (B, ..., G O), channels last."""
    positions = grad.shape[1:-1]
    spread = torch.bmm(_rows(grad, groups), _matrices(weight, groups))  # (G, K, T C)
    by_tap = spread.reshape(groups, spread.shape[1], -1, weight.shape[1]).permute(1, 2, 0, 3)
    x = by_tap.reshape(len(grad), *positions, groups * weight[0].numel())
    for axis in reversed(_axes(window, extents, positions)):
        x = axis.sum(x.chunk(axis.kernel, -1))
    return x
