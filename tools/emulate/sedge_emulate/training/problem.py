"""A training problem, for which a trainer is opened: the model, its loss, and how batches are drawn."""

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
class TrainingProblem:
    """A model whose examples have the shape and type ``input``, trained in batches of ``batch_size``.

    ``target`` is the type and shape of an example's target, or None if the input is also the target.
    ``parts`` describe the model's inputs if it takes several. ``sample`` (N, ...) are real inputs, for
    a model that does not accept arbitrary numbers.
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
        """The model's layout and traced functions.

        Raises ``ExportError`` if theta cannot hold some of the model's values.
        """
        return Network(self.module, self.objective)

    @cached_property
    def noise(self) -> int:
        """The number of random numbers that a training step uses."""
        dtype: torch.dtype = getattr(torch, self.input.dtype)
        return random_numbers(
            self.module, torch.zeros(self.batch_size, *self.input.shape, dtype=dtype)
        )

    def batches(self, task: Task) -> Iterator[Batch]:
        """Yield the batches of a task's training steps, the same as on a real device."""
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
