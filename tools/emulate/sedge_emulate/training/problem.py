"""What is trained: the model, its loss, and how its batches are made. Backends are opened on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sedge_edge.data import Examples, Inputs
from sedge_edge.training.batches import Batch, Permutations, batches, permutations
from sedge_emulate.training.tasks import MixedTask, Task
from sedge_export.network import Network, RowLoss
from sedge_protocol.wire.bundle import TensorSpec


@dataclass(frozen=True)
class Problem:
    """A model for rows of the shape and type of ``input``, trained in batches of ``batch_size``."""

    module: nn.Module
    loss: RowLoss
    classifies: bool
    batch_size: int
    input: TensorSpec
    shuffles: Permutations = permutations

    @cached_property
    def network(self) -> Network:
        """The layout and the traced functions. Raises ``ExportError`` for what theta cannot hold."""
        return Network(self.module, self.loss, self.classifies)

    def batches(self, task: Task | MixedTask) -> Iterator[Batch]:
        """The steps of a task, as a device makes them."""
        return batches(
            len(task.examples.targets),
            self.batch_size,
            task.training.local_epochs,
            task.training.last_batch,
            task.seed,
            not self.network.uses_batch_statistics,
            self.shuffles,
        )


class Feed:
    """Where batches are gathered, always in the same memory."""

    def __init__(self, input: TensorSpec, rows: int, device: torch.device) -> None:
        self._x: Inputs = np.empty((rows, *input.shape), np.dtype(input.dtype))
        self._y = np.empty(rows, np.int64)
        self._device = device

    def fill(self, examples: Examples, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """x (B, ...) and y (B,) of the rows (B,); valid until the next fill."""
        x, y = self._x[: len(rows)], self._y[: len(rows)]
        # The indices are in range; "clip" only keeps numpy from gathering into a copy first.
        examples.inputs.take(rows, axis=0, out=x, mode="clip")
        examples.targets.take(rows, out=y, mode="clip")
        return torch.from_numpy(x).to(self._device), torch.from_numpy(y).to(self._device)
