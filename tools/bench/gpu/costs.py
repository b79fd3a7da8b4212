"""What one device's training step must compute and move, whatever the implementation.

FLOPs are counted by torch in one eager forward and backward pass of one batch (products and convolutions;
a multiplication and an addition are two). Bytes are a model of the memory traffic of separate kernels in
float32, 24 n + 2 s + b: theta (n,) is read forward, backward and by SGD, which writes it; the gradient is
written and read; the s bytes that autograd keeps for the backward pass are written and read; the batch of
b bytes is read. Caches and bf16 move less, padding and unfolded patches more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from tools.bench.training import Example
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    """One example's share of a step: floating point operations and bytes of memory traffic."""

    flops: float
    bytes: float


def cost(example: Example) -> Cost:
    """What a step on a full batch costs, divided by its examples."""
    return _cost(example.build, example.batch_size, example.shape)


@cache
def _cost(build: Callable[[], nn.Module], batch_size: int, shape: tuple[int, ...]) -> Cost:
    model = build().train()
    x = torch.randn(batch_size, *shape)
    y = torch.zeros(batch_size, dtype=torch.int64)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(pack, lambda t: t):
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    n = sum(parameter.numel() for parameter in model.parameters())
    moved = 24 * n + 2 * sum(kept.values()) + x.nbytes
    return Cost(counter.get_total_flops() / batch_size, moved / batch_size)
