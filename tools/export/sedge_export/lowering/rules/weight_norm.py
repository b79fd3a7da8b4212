"""The gradient of weight normalisation, w = g v / |v|, for both runtimes (Salimans, Kingma 2016, eq. 3)."""

import torch
from torch import Tensor

from sedge_export.lowering.rules.table import replaces

aten = torch.ops.aten


@replaces(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of v and of g; the latter has one element for each index along ``dim``."""
    others = [axis for axis in range(v.ndim) if axis != dim % v.ndim]
    norms = norms.reshape(g.shape)
    along = (grad * v).sum(others, keepdim=True)
    of_v = g / norms * (grad - v * (along / (norms * norms)))
    return of_v, along / norms
