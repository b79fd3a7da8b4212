"""A model for the tables in docs/models.md."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sedge_edge.backends.rows import Rows
from sedge_protocol.wire.bundle import TensorSpec


@dataclass(frozen=True)
class Case:
    """A model with its data and loss.

    ``row`` is the shape of one input. If ``vocabulary`` is not 0, inputs are integers below it. If the
    targets are floats instead of classes, ``targets`` is the shape of one.
    """

    kind: str
    build: Callable[[], nn.Module]
    row: tuple[int, ...]
    classes: int = 10
    vocabulary: int = 0
    loss: Rows | None = None
    targets: tuple[int, ...] = ()

    def sample(self, batch_size: int) -> Tensor:
        """Return random inputs (B, ...)."""
        rng = torch.Generator().manual_seed(0)
        shape = (batch_size, *self.row)
        if self.vocabulary:
            return torch.randint(self.vocabulary, shape, generator=rng)
        return torch.randn(shape, generator=rng)

    @property
    def target(self) -> TensorSpec | None:
        """The specification of one target, or None if targets are classes."""
        return TensorSpec("float32", self.targets) if self.targets else None
