"""Estimates the operations and memory traffic of a training step, independent of its implementation.

FLOPs are counted by torch in one eager forward and backward pass of a batch (products and convolutions; a
multiplication and an addition are two FLOPs). Bytes are an estimate for separate kernels in float32, 24 n +
2 s + b: theta (n,) is read in the forward pass, in the backward pass and by SGD, which also writes it; the
gradient is written and read; the s bytes that autograd saves for the backward pass are written and read;
the batch of b bytes is read. Caches and bf16 reduce this; padding and unfolded patches increase it.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sedge_emulate.training.fitting import kept_bytes
from sedge_emulate.training.problem import TrainingProblem
from sedge_export.subject.network import copied


@dataclass(frozen=True)
class Cost:
    """A training step's cost per example: floating-point operations and bytes of memory traffic."""

    flops: float
    bytes: float


def cost(of: TrainingProblem) -> Cost:
    """Return the cost per example of a classifier's step on a full batch."""
    rows = of.batch_size
    x, y = torch.randn(rows, *of.input.shape), torch.zeros(rows, dtype=torch.int64)
    model = copied(of.module).train()
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    moved = 24 * of.network.layout.size + 2 * sum(kept_bytes(of, "grouped")) + x.nbytes
    return Cost(counter.get_total_flops() / rows, moved / rows)
