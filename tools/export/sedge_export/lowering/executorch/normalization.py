"""Batch and group normalisation and their gradients, of which ExecuTorch has no kernel or a slow one.

Both centre x over some set of M elements (d = x - mean), divide by the set's deviation, and scale by
channel. Variances come from d, in two passes, so a large mean costs no digits. The gradient is
    dx = a g + b d + c,   a = gamma r,  b = -r^3 sum(gamma g d) / M,  c = -r sum(gamma g) / M,
with r = 1 / sqrt(variance + eps) and the sums over the same set. x is channels last throughout, and sums
are products with ones.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sedge_export.lowering.executorch.products import (
    column_sums,
    example_sums,
    mm,
)
from sedge_export.lowering.rules.channels import channels_first, channels_last
from sedge_export.lowering.rules.table import replaces
from sedge_protocol.errors import ExportError

aten = torch.ops.aten


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


# Batch normalisation: one set per channel.


@replaces(aten._native_batch_norm_legit_functional.default)
def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Output, the batch's mean and 1 / deviation, and the new running mean and variance, each (C,)."""
    last = channels_last(x)
    if not training:
        factor = _times(torch.rsqrt(running_var + eps), weight)
        shift = running_mean * factor
        offset = -shift if bias is None else bias - shift
        # torch traces no saved statistics in evaluation.
        none = x.new_empty(0)
        return channels_first(last * factor + offset), none, none, running_mean, running_var
    out, mean, variance, inverse = _by_channel(last, weight, bias, eps)
    count = x.numel() // x.shape[1]
    # The running variance is the unbiased one; the batch is normalised with the biased one.
    unbiased = variance * (count / (count - 1))
    moved = [
        running * (1 - momentum) + batch * momentum
        for running, batch in ((running_mean, mean), (running_var, unbiased))
    ]
    return channels_first(out), mean, inverse, *moved


@replaces(aten.native_batch_norm.default)
def instance_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, mean and 1 / deviation; without running statistics, as instance normalisation has it."""
    if running_mean is not None or running_var is not None or not training:
        raise ExportError("running statistics outside of a BatchNorm module")
    out, mean, _, inverse = _by_channel(channels_last(x), weight, bias, eps)
    return channels_first(out), mean, inverse


def _by_channel(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, mean, biased variance and 1 / deviation of each channel of x (B, ..., C)."""
    share = x.shape[-1] / x.numel()
    mean = column_sums(x) * share
    centred = x - mean
    variance = column_sums(centred * centred) * share
    inverse = torch.rsqrt(variance + eps)
    out = centred * _times(inverse, weight)
    return (out if bias is None else out + bias), mean, variance, inverse


@replaces(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, mean: Tensor, inverse: Tensor, train: bool, eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of input, weight and bias."""
    if not train:
        assert running_mean is not None and running_var is not None  # torch's own contract
        mean, inverse = running_mean, torch.rsqrt(running_var + eps)
    rows, centred = channels_last(grad), channels_last(x) - mean
    total = column_sums(rows)
    along = column_sums(rows * centred)
    a = _times(inverse, weight)
    scaled = rows * a
    if train:
        share = x.shape[1] / x.numel()
        b = a * inverse * inverse * along * -share
        c = a * total * -share
        scaled = scaled + (centred * b + c)
    return channels_first(scaled), along * inverse, total


# Group normalisation: one set per row of the batch and group of channels.


@replaces(aten.native_group_norm.default)
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, positions: int,
    groups: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, and mean and 1 / deviation, each (n, groups)."""
    rows = channels_last(x.reshape(n, channels, positions))
    share = n * groups / x.numel()
    mean = _group_sums(rows, groups) * share
    centred = rows - _each_channel(mean, channels)
    inverse = torch.rsqrt(_group_sums(centred * centred, groups) * share + eps)
    out = centred * _times(_each_channel(inverse, channels), weight)
    out = channels_first(out if bias is None else out + bias)
    return out.reshape(x.shape), mean, inverse


@replaces(aten.native_group_norm_backward.default)
def group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, n: int,
    channels: int, positions: int, groups: int, output_mask: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of input, weight and bias."""
    rows, grads = (channels_last(t.reshape(n, channels, positions)) for t in (x, grad))
    centred = rows - _each_channel(mean, channels)
    total, along = example_sums(grads), example_sums(grads * centred)  # (n, C)
    spread = _each_channel(inverse, channels)  # (n, 1, C)
    share = -n * groups / x.numel()
    sets = [_grouped(_times(part, weight), groups) for part in (along, total)]  # (n, groups)
    b = _each_channel(sets[0] * inverse * inverse * inverse * share, channels)
    c = _each_channel(sets[1] * inverse * share, channels)
    dx = grads * _times(spread, weight) + (centred * b + c)
    for_weight = column_sums(along.reshape(n, 1, channels) * spread)
    return channels_first(dx).reshape(x.shape), for_weight, column_sums(total)


def _group_sums(x: Tensor, groups: int) -> Tensor:
    """The sums (n, groups) of x (n, positions, C)."""
    return _grouped(example_sums(x), groups)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """The sums (n, groups) over each group's channels of x (n, C)."""
    each = x.shape[1] // groups
    return mm(x.reshape(-1, each), x.new_ones(each, 1)).reshape(len(x), groups)


def _each_channel(x: Tensor, channels: int) -> Tensor:
    """x (n, groups) repeated for each group's channels, (n, 1, C)."""
    each = channels // x.shape[1]
    return mm(x.reshape(-1, 1), x.new_ones(1, each)).reshape(len(x), 1, channels)
