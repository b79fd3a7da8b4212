"""Matrix products and sums along axes, as the batched products that XNNPACK accepts.

XNNPACK multiplies plain matrices only if one of them is constant, but theta is an input here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sedge_export.lowering.rules.table import replaces
from sedge_protocol.errors import ExportError

aten = torch.ops.aten
Scalar = bool | int | float


@replaces(aten.mm.default)
def mm(x: Tensor, y: Tensor) -> Tensor:
    """Return x @ y for matrices."""
    return torch.bmm(x.reshape(1, *x.shape), y.reshape(1, *y.shape)).reshape(len(x), y.shape[1])


@replaces(aten.addmm.default)
def addmm(bias: Tensor, x: Tensor, y: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """Return beta bias + alpha x @ y."""
    product = mm(x, y)
    product = product if alpha == 1 else product * alpha
    return product + (bias if beta == 1 else bias * beta)


@replaces(aten.linalg_vector_norm.default)
def vector_norm(
    x: Tensor, order: Scalar = 2, dim: Sequence[int] | None = None, keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Return the norm of order 1 or 2 over some axes."""
    axes = list(dim or range(x.ndim))
    if order not in (1, 2):
        raise ExportError(f"norm of order {order}, expected 1 or 2")
    return x.abs().sum(axes, keepdim) if order == 1 else (x * x).sum(axes, keepdim).sqrt()


def column_sums(x: Tensor) -> Tensor:
    """Return the sum (C,) of x (B, ..., C) over all axes but the last: per example, then over the batch.

    A product with ones keeps the sum in XNNPACK's delegate, and two steps reduce the rounding error.
    """
    sums = example_sums(x)
    return mm(sums.new_ones(1, len(sums)), sums).reshape(x.shape[-1])


def example_sums(x: Tensor) -> Tensor:
    """Return the sum (B, C) of x (B, ..., C) over the axes in between."""
    rows = x.reshape(len(x), -1, x.shape[-1])
    ones = rows.new_ones(len(rows), 1, rows.shape[1])
    return torch.bmm(ones, rows).reshape(len(rows), x.shape[-1])
