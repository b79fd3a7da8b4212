"""Batch, group and instance normalisation and their gradients, for both runtimes.

Each of them subtracts from x the mean over a set of M elements (d = x - mean), divides by the set's
standard deviation, and scales each channel. Variances are computed from d in a second pass, so that a
large mean costs no precision. The gradient is
    dx = a g + b d + c,   a = gamma r,  b = -r^3 sum(gamma g d) / M,  c = -r sum(gamma g) / M,
with r = 1 / sqrt(variance + eps) and sums over the same set. Each runtime has its own way to lay x out,
sum and scale (``NormOperations``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._ops import OpOverload

from sedge_export.lowering.rules.table import Rule
from sedge_protocol.errors import ExportError

aten = torch.ops.aten


@dataclass(frozen=True)
class NormOperations:
    """One runtime's operations on x (B, C, ...): ``laid`` puts x into its axis order, ``back`` undoes that.

    The other functions take x in that order. ``column_sums`` and ``example_sums`` return sums (C,) and
    (B, C) over all other axes. ``each`` reshapes numbers (C,) or (B, C) so that they broadcast to x.
    ``scaled`` returns x times a factor plus an offset; factor and offset are (C,) or (B, C).
    """

    laid: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]
    column_sums: Callable[[Tensor], Tensor]
    example_sums: Callable[[Tensor], Tensor]
    each: Callable[[Tensor, Tensor], Tensor]
    scaled: Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


@dataclass(frozen=True)
class Normalization:
    """The rules in one runtime's axis order. Each rule takes and returns the same as its ATen operator."""

    order: NormOperations

    @property
    def rules(self) -> dict[OpOverload, Rule]:
        """The rule for each operator."""
        return {
            aten._native_batch_norm_legit_functional.default: self.batch_norm,
            aten.native_batch_norm.default: self.instance_norm,
            aten.native_batch_norm_backward.default: self.batch_norm_backward,
            aten.native_group_norm.default: self.group_norm,
            aten.native_group_norm_backward.default: self.group_norm_backward,
        }

    # Batch normalisation: each channel is normalised on its own, over the whole batch.

    def batch_norm(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
        running_var: Tensor, training: bool, momentum: float, eps: float,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the output, the batch's mean and 1 / deviation, and the new running mean and variance."""
        order, laid = self.order, self.order.laid(x)
        if not training:
            factor = _times(torch.rsqrt(running_var + eps), weight)
            shift = running_mean * factor
            offset = -shift if bias is None else bias - shift
            # In evaluation mode, torch traces no saved statistics.
            none = x.new_zeros(0)
            out = order.back(order.scaled(laid, factor, offset))
            return out, none, none, running_mean, running_var
        out, mean, variance, inverse = self._by_channel(laid, x.shape[1], weight, bias, eps)
        count = x.numel() // x.shape[1]
        # The batch is normalised with its biased variance, but the running variance is unbiased.
        unbiased = variance * (count / (count - 1))
        moved = [
            running * (1 - momentum) + batch * momentum
            for running, batch in ((running_mean, mean), (running_var, unbiased))
        ]
        return order.back(out), mean, inverse, *moved

    def instance_norm(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
        running_var: Tensor | None, training: bool, momentum: float, eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Normalise without running statistics. Returns the output, the mean and 1 / deviation."""
        if running_mean is not None or running_var is not None or not training:
            raise ExportError("running statistics outside of a BatchNorm module")
        laid = self.order.laid(x)
        out, mean, _, inverse = self._by_channel(laid, x.shape[1], weight, bias, eps)
        return self.order.back(out), mean, inverse

    def _by_channel(
        self, x: Tensor, channels: int, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Normalise each channel of x.

        Returns the output, the mean, the biased variance and 1 / deviation.
        """
        order, share = self.order, channels / x.numel()
        mean = order.column_sums(x) * share
        centred = x - order.each(mean, x)
        variance = order.column_sums(centred * centred) * share
        inverse = torch.rsqrt(variance + eps)
        out = order.scaled(centred, _times(inverse, weight), bias)
        return out, mean, variance, inverse

    def batch_norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None,
        running_var: Tensor | None, mean: Tensor, inverse: Tensor, train: bool, eps: float,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return the gradients of input, weight and bias."""
        order = self.order
        if not train:
            assert running_mean is not None and running_var is not None  # guaranteed by torch
            mean, inverse = running_mean, torch.rsqrt(running_var + eps)
        rows, laid = order.laid(grad), order.laid(x)
        centred = laid - order.each(mean, laid)
        total = order.column_sums(rows)
        along = order.column_sums(rows * centred)
        a = _times(inverse, weight)
        scaled = rows * order.each(a, rows)
        if train:
            share = x.shape[1] / x.numel()
            b = a * inverse * inverse * along * -share
            c = a * total * -share
            scaled = scaled + order.scaled(centred, b, c)
        return order.back(scaled), along * inverse, total

    # Group normalisation: in each row, each group of channels is normalised on its own.

    def group_norm(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int,
        positions: int, groups: int, eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return the output, and the mean and 1 / deviation, each (n, groups)."""
        order, share = self.order, n * groups / x.numel()
        rows = order.laid(x.reshape(n, channels, positions))
        mean = _grouped(order.example_sums(rows), groups) * share
        centred = rows - order.each(_spread(mean, channels), rows)
        variance = _grouped(order.example_sums(centred * centred), groups) * share
        inverse = torch.rsqrt(variance + eps)
        out = order.scaled(centred, _times(_spread(inverse, channels), weight), bias)
        return order.back(out).reshape(x.shape), mean, inverse

    def group_norm_backward(
        self, grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, n: int,
        channels: int, positions: int, groups: int, output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return the gradients of input, weight and bias."""
        order, share = self.order, -n * groups / x.numel()
        rows, grads = (order.laid(t.reshape(n, channels, positions)) for t in (x, grad))
        centred = rows - order.each(_spread(mean, channels), rows)
        total, along = order.example_sums(grads), order.example_sums(grads * centred)  # (n, C)
        spread = _spread(inverse, channels)
        sets = [_grouped(_times(part, weight), groups) for part in (along, total)]  # (n, groups)
        b = _spread(sets[0] * inverse * inverse * inverse * share, channels)
        c = _spread(sets[1] * inverse * share, channels)
        scaled = grads * order.each(_times(spread, weight), grads)
        dx = order.back(scaled + order.scaled(centred, b, c)).reshape(x.shape)
        return dx, _summed(along * spread), _summed(total)


def _summed(x: Tensor) -> Tensor:
    """Return the column sums (C,) of x (n, C)."""
    return torch.mm(x.new_ones(1, len(x)), x).reshape(-1)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Sum x (n, C) over the channels of each group. Returns (n, groups)."""
    each = x.shape[1] // groups
    return torch.mm(x.reshape(-1, each), x.new_ones(each, 1)).reshape(len(x), groups)


def _spread(x: Tensor, channels: int) -> Tensor:
    """Repeat x (n, groups) for the channels of each group. Returns (n, C)."""
    each = channels // x.shape[1]
    return torch.mm(x.reshape(-1, 1), x.new_ones(1, each)).reshape(len(x), channels)
