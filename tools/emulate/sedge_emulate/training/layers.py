"""Layers with a forward and a backward pass of their own, and parameters in the layout they want.

Images are (B, C, H, W) in memory order B, H, W, C, filters in the order O, H, W, C; oneDNN then takes both
as they are. A linear layer behind images has its columns in their order. Parameters are slices of one
flat vector and their gradients slices of another, in the same order; each layer fills its own.
"""

from typing import Protocol

import torch
from torch import Tensor

from sedge_emulate.training import graph
from sedge_emulate.training.products import by_transposed
from sedge_emulate.training.winograd import Winograd

_aten = torch.ops.aten


class Explicit(Protocol):
    """A layer between two passes: ``backward`` belongs to the last ``forward``."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        ...

    def backward(self, gradient: Tensor, wants_input: bool) -> Tensor | None:
        """The gradient of the input, if wanted, from that of the output; fills the parameters'."""
        ...


class Parameter:
    """A weight or bias as a layer uses it, and where its gradient goes."""

    def __init__(self, value: Tensor, gradient: Tensor) -> None:
        self.value, self.gradient = value, gradient


class DirectConvolution:
    """oneDNN's convolution; filters are stored (O, H, W, C)."""

    def __init__(
        self, settings: graph.Convolution, filters: Parameter, bias: Parameter | None
    ) -> None:
        self._settings, self._filters, self._bias = settings, filters, bias
        self._value = filters.value.permute(0, 3, 1, 2)
        self._x = self._value

    def forward(self, x: Tensor) -> Tensor:
        s = self._settings
        self._x = x
        bias = None if self._bias is None else self._bias.value
        return torch.conv2d(x, self._value, bias, s.stride, s.padding, s.dilation, s.groups)

    def backward(self, gradient: Tensor, wants_input: bool) -> Tensor | None:
        s, bias = self._settings, self._bias
        found: tuple[Tensor | None, Tensor, Tensor] = _aten.convolution_backward(
            gradient, self._x, self._value, [len(self._value)], s.stride, s.padding, s.dilation,
            False, [0, 0], s.groups, [wants_input, True, bias is not None],
        )  # fmt: skip
        self._filters.gradient.copy_(found[1].permute(0, 2, 3, 1))
        if bias is not None:
            bias.gradient.copy_(found[2])
        return found[0]


class MinimalConvolution:
    """``Winograd``; filters are stored (H, O, W, C)."""

    def __init__(
        self, settings: graph.Convolution, filters: Parameter, bias: Parameter | None
    ) -> None:
        value = None if bias is None else bias.value
        self._inner = Winograd(filters.value, value, settings.padding)
        self._gradients = filters.gradient, None if bias is None else bias.gradient

    def forward(self, x: Tensor) -> Tensor:
        return self._inner.forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def backward(self, gradient: Tensor, wants_input: bool) -> Tensor | None:
        images = gradient.permute(0, 2, 3, 1)
        found = self._inner.backward(images, *self._gradients, wants_input)
        return None if found is None else found.permute(0, 3, 1, 2)


class LinearLayer:
    """x W' + b; the weight is stored (O, I), or (O, H, W, C) behind images."""

    def __init__(self, weight: Parameter, bias: Parameter | None) -> None:
        self._weight = Parameter(weight.value.flatten(1), weight.gradient.flatten(1))
        self._bias = bias
        self._x = weight.value

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        return by_transposed(
            x, self._weight.value, None if self._bias is None else self._bias.value
        )

    def backward(self, gradient: Tensor, wants_input: bool) -> Tensor | None:
        if self._bias is not None:
            torch.sum(gradient, 0, dtype=torch.float32, out=self._bias.gradient)
        self._weight.gradient.copy_(by_transposed(gradient.t(), self._x.t()))
        return by_transposed(gradient, self._weight.value.t()) if wants_input else None


class MaxPool:
    """Max-pooling; of equal elements the first counts, as everywhere in torch."""

    def __init__(self, settings: graph.Pool) -> None:
        s = settings
        self._settings = s.kernel, s.stride, s.padding, s.dilation, s.ceil_mode
        self._x = self._indices = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        output: Tensor
        output, self._indices = _aten.max_pool2d_with_indices(x, *self._settings)
        return output

    def backward(self, gradient: Tensor, wants_input: bool) -> Tensor | None:
        if not wants_input:
            return None
        found: Tensor = _aten.max_pool2d_with_indices_backward(
            gradient, self._x, *self._settings, self._indices
        )
        return found


class HalvingPool:
    """Max-pooling of squares of 2 x 2, whole rows at a time; of equal elements the first counts.

    For bfloat16, whose elements torch's own converts one by one: both passes of (32, 32, 24, 24) take 0.30
    ms instead of 0.50 on one Zen 4 core. In float32 there is nothing to win. What makes no whole square is
    left out.
    """

    def __init__(self) -> None:
        # 1 where the second element counts: the right one of each row, then the lower row. As numbers of
        # the gradient's own type; booleans would be converted at every use.
        self._right = self._lower = torch.empty(0)
        self._shape: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        images = x.permute(0, 2, 3, 1)
        self._shape = tuple(images.shape)
        left, right = _squares(images).unbind(4)
        rows = torch.maximum(left, right)
        self._right = torch.gt(right, left, out=torch.empty_like(rows))
        upper, lower = rows.unbind(2)
        self._lower = torch.gt(lower, upper, out=torch.empty_like(lower))
        return torch.maximum(upper, lower).permute(0, 3, 1, 2)

    def backward(self, gradient: Tensor, wants_input: bool) -> Tensor | None:
        if not wants_input:
            return None
        is_whole = not any(side % 2 for side in self._shape[1:3])
        make = gradient.new_empty if is_whole else gradient.new_zeros
        found = make(self._shape)
        rows = torch.empty_like(self._right)
        _deal(gradient.permute(0, 2, 3, 1), self._lower, rows.unbind(2))
        _deal(rows, self._right, _squares(found).unbind(4))
        return found.permute(0, 3, 1, 2)


class ReluLayer:
    """max(0, x), written over x, which no layer before needs any more."""

    def __init__(self) -> None:
        self._output = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        self._output = x.clamp_min_(0)
        return self._output

    def backward(self, gradient: Tensor, wants_input: bool) -> Tensor | None:
        if not wants_input:
            return None
        found: Tensor = _aten.threshold_backward(gradient, self._output, 0)
        return found


class FlattenLayer:
    """(B, C, H, W) to (B, H W C), a view; what is flat already stays."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        ordered = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
        self._shape = tuple(ordered.shape)
        return ordered.reshape(x.shape[0], -1)

    def backward(self, gradient: Tensor, wants_input: bool) -> Tensor | None:
        if not wants_input:
            return None
        found = gradient.view(self._shape)
        return found.permute(0, 3, 1, 2) if len(self._shape) == 4 else found


def _squares(images: Tensor) -> Tensor:
    """The squares of images (b, h, w, c) as a view, (b, h', 2, w', 2, c)."""
    count, height, width, channels = images.shape
    whole = images[:, : height - height % 2, : width - width % 2]
    return whole.view(count, height // 2, 2, width // 2, 2, channels)


def _deal(gradient: Tensor, to_second: Tensor, into: tuple[Tensor, ...]) -> None:
    """Give each element of a gradient to the first or, where that is 1, the second of a pair."""
    first, second = into
    torch.mul(gradient, to_second, out=second)
    torch.sub(gradient, second, out=first)
