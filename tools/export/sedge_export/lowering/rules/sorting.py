"""Sorts by counting, for both runtimes: an element's place is the number of elements before it.

Equal elements keep their order, as in a stable sort, on every runtime and processor. Neither
onnxruntime's nor ExecuTorch's own operator guarantees that. All pairs are compared at once: sorting 32
rows of 64 elements takes as long as a matrix product of that size.
"""

import torch
from torch import Tensor

from sedge_export.lowering.rules.table import replaces
from sedge_protocol.errors import ExportError

aten = torch.ops.aten

MAX_PAIRS = 2**24  # 64 MiB as float32


def _sorted(x: Tensor, count: int, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Return the first ``count`` elements along an axis in sorted order, and their original indices."""
    x = x.reshape(1) if not x.ndim else x
    rows = x.movedim(dim, -1)
    extent = rows.shape[-1]
    if rows.numel() * extent > MAX_PAIRS:
        raise ExportError(
            f"sorts {extent} elements in each of {rows.numel() // extent} rows, expected at most"
            f" {MAX_PAIRS} pairs to compare in total: pool or cut the axis first"
        )
    own, other = rows.unsqueeze(-1), rows.unsqueeze(-2)
    places = torch.arange(extent, device=x.device)
    before = other > own if descending else other < own
    tied = (other == own) & (places < places.unsqueeze(-1))
    ranks = (before | tied).to(torch.float32).sum(-1).to(torch.int64)
    order = torch.zeros_like(ranks).scatter(-1, ranks, places.expand(ranks.shape))
    indices = order.narrow(-1, 0, count)
    return rows.gather(-1, indices).movedim(-1, dim), indices.movedim(-1, dim)


@replaces(aten.topk.default)
def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements along an axis, in order, and their indices."""
    return _sorted(x, k, dim, largest)


@replaces(aten.sort.default, aten.sort.stable)
def sort(
    x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Return all elements along an axis, in order, and their indices."""
    return _sorted(x, x.shape[dim], dim, descending)


@replaces(aten.kthvalue.default)
def kth_value(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the k-th smallest element along an axis, and its index."""
    last = [each.narrow(dim, k - 1, 1) for each in _sorted(x, k, dim, False)]
    values, places = last if keepdim else (each.squeeze(dim) for each in last)
    return values, places


@replaces(aten.median.dim)
def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the median along an axis (the lower one of two), and its index."""
    return kth_value(x, (x.shape[dim] + 1) // 2, dim, keepdim)
