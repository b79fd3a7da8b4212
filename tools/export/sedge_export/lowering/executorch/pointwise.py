"""Element-wise operators that are rewritten so that XNNPACK can run them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sedge_export.lowering.rules.pooling import positive
from sedge_export.lowering.rules.table import replaces

aten = torch.ops.aten


@replaces(aten.threshold_backward.default)
def threshold_backward(grad: Tensor, x: Tensor, threshold: bool | int | float) -> Tensor:
    """Return grad where x > threshold, else 0."""
    return grad * positive(x if threshold == 0 else x - threshold)


@replaces(aten.remainder.Scalar, aten.remainder.Tensor)
def remainder(x: Tensor, y: Tensor | int | float) -> Tensor:
    """Return the remainder with the sign of y. ExecuTorch's kernel gives integers the sign of x instead."""
    if not (x.is_floating_point() or isinstance(y, float)):
        return x - torch.div(x, y, rounding_mode="floor") * y
    found = torch.fmod(x, y)
    other = (found != 0) & ((found < 0) != (y < 0))
    return torch.where(other, found + y, found)


@replaces(aten.gelu.default)
def gelu(x: Tensor, approximate: str = "none") -> Any:
    """Return x Phi(x). XNNPACK would replace the exact form with the approximate one."""
    if approximate == "none":
        return NotImplemented  # ExecuTorch's own kernel
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    result: Tensor = 0.5 * x * (1 + torch.tanh(inner))
    return result


@replaces(aten.empty_permuted.default)
def empty(
    size: Sequence[int], _order: Sequence[int], dtype: torch.dtype = torch.float32, **_where: object
) -> Tensor:
    """Return zeros instead of uninitialised memory. Decompositions use only the shape."""
    return torch.zeros(size, dtype=dtype)


@replaces(aten.new_empty_strided.default)
def new_empty(
    x: Tensor, size: Sequence[int], _stride: Sequence[int], dtype: torch.dtype | None = None,
    **_where: object,
) -> Tensor:  # fmt: skip
    """Return zeros of the type of x instead of uninitialised memory. Every element is overwritten later."""
    return torch.zeros(size, dtype=dtype or x.dtype)


@replaces(aten.view.default, aten._unsafe_view.default)
def view(x: Tensor, size: Sequence[int]) -> Tensor:
    """Return x with another shape.

    The result is a copy, because the rules may have left x in an order that torch cannot view.
    """
    copy: Tensor = aten.view_copy(x, size)
    return copy
