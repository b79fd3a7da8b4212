"""Products of matrices, float32 by oneDNN.

torch gives a product in float32 to MKL, which keeps to vectors of 256 bits on processors that are not
Intel's. On one core of an AMD Zen with AVX-512, (32, 1024) by (1024, 512): MKL 0.38 ms, oneDNN 0.21 ms;
square ones of 1024: 97 and 205 billion operations a second. A small one is MKL's by a few microseconds.

torch has that kernel under a name of its own compiler's; where a build lacks it its usual product takes
the place. bfloat16 goes to oneDNN anyway.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Multiplications that make oneDNN the faster one.
_WORTH_IT = 2**19
# (x, weight, bias, activation, its numbers, its kind)
_Kernel = Callable[[Tensor, Tensor, Tensor | None, str, list[float], str], Tensor]
_KERNEL: _Kernel | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def by_transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight' + bias, (m, n), as a new tensor: of x (m, k), weight (n, k) and bias (n,)."""
    large = x.shape[0] * weight.numel() >= _WORTH_IT
    if _KERNEL is not None and large and x.dtype == torch.float32:
        return _KERNEL(x, weight, bias, "none", [], "")
    if bias is None:
        return torch.mm(x, weight.t())
    return torch.addmm(bias, x, weight.t())
