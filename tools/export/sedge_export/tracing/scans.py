"""Products and running extrema along an axis, in a logarithmic number of steps.

Not every runtime has all of these operators, and how torch computes a product's gradient depends on
where the product is 0. The steps used here are exact there, too, because autograd differentiates them
without a division.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

Join = Callable[[Tensor, Tensor], Tensor]


def _product(
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Replace ``torch.prod``: pairs are multiplied until one number is left."""
    x = input.to(dtype or _counted(input))
    axis = 0 if dim is None else dim % max(x.ndim, 1)
    x = x.reshape(-1) if dim is None or not x.ndim else x
    while x.shape[axis] > 1:
        half = x.shape[axis] // 2
        pairs = x.narrow(axis, 0, half) * x.narrow(axis, half, half)
        rest = x.narrow(axis, 2 * half, x.shape[axis] % 2)
        x = torch.cat([pairs, rest], axis) if rest.shape[axis] else pairs
    if dim is not None and keepdim:
        return x
    return x.select(axis, 0) if x.shape[axis] else x.new_ones(x.sum(axis).shape)


def _counted(x: Tensor) -> torch.dtype:
    """Return the type that torch uses to multiply the elements of x."""
    return x.dtype if x.is_floating_point() else torch.int64


def _running(join: Join, x: Tensor, axis: int) -> Tensor:
    """Combine each element with all elements before it, using ``join``."""
    step, extent = 1, x.shape[axis]
    while step < extent:
        head, tail = x.narrow(axis, 0, step), x.narrow(axis, step, extent - step)
        x = torch.cat([head, join(tail, x.narrow(axis, 0, extent - step))], axis)
        step *= 2
    return x


def _running_product(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _running(torch.mul, input.to(dtype or _counted(input)), dim % input.ndim)


def _running_extreme(join: Join, input: Tensor, dim: int) -> Any:
    """Return running extrema and their indices.

    As in torch, ties take the last index, which gets the gradient.
    """
    axis, held = dim % input.ndim, input.detach()
    places = torch.arange(input.shape[axis]).reshape(-1, *[1] * (input.ndim - axis - 1))
    met = torch.where(held == _running(join, held, axis), places, 0)
    indices = _running(torch.maximum, met, axis)
    kind = torch.return_types.cummax if join is torch.maximum else torch.return_types.cummin
    return kind((input.gather(axis, indices), indices))


_largest = partial(_running_extreme, torch.maximum)
_smallest = partial(_running_extreme, torch.minimum)

# Replacements for the torch functions that are computed this way.
SCANS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.prod: _product,
    Tensor.prod: _product,
    torch.cumprod: _running_product,
    Tensor.cumprod: _running_product,
    torch.cummax: _largest,
    Tensor.cummax: _largest,
    torch.cummin: _smallest,
    Tensor.cummin: _smallest,
}
