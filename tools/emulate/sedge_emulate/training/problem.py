"""A training problem: the model, its loss, and how its batches are made. Backends are opened on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from sedge_edge.backends.rows import Objective
from sedge_edge.training.batches import Batch, Permutations, batches, permutations
from sedge_edge.training.examples import Inputs
from sedge_emulate.training.tasks import Task
from sedge_export.subject.network import Network, random_numbers
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.parts import InputPart

LABELS = TensorSpec("int64", ())


@dataclass(frozen=True)
class Problem:
    """A model for rows of the shape and type of ``input``, trained in batches of ``batch_size``.

    ``target`` is a row of y, None if that is the input; ``parts`` are the parts of an input, if it has
    several. ``sample`` (N, ...) are real inputs, for a model that does not take arbitrary numbers.
    """

    module: nn.Module
    objective: Objective
    batch_size: int
    input: TensorSpec
    target: TensorSpec | None = LABELS
    shuffles: Permutations = permutations
    parts: tuple[InputPart, ...] = ()
    sample: Inputs | None = None

    @cached_property
    def network(self) -> Network:
        """The layout and the traced functions. Raises ``ExportError`` for values that theta cannot hold."""
        return Network(self.module, self.objective)

    @cached_property
    def noise(self) -> int:
        """The number of random numbers that a step takes."""
        dtype: torch.dtype = getattr(torch, self.input.dtype)
        return random_numbers(
            self.module, torch.zeros(self.batch_size, *self.input.shape, dtype=dtype)
        )

    def batches(self, task: Task) -> Iterator[Batch]:
        """The steps of a task, the same as on a device."""
        training = task.request.training
        return batches(
            len(task.examples.targets),
            self.batch_size,
            training.local_epochs,
            training.last_batch,
            task.request.seed,
            not self.network.uses_batch_statistics and not self.noise,
            self.shuffles,
        )
