"""Trains one device after another with autograd, on one core: the default for convolutions on a CPU.

Batches are trimmed to the rows whose weight is one, so padding is never computed, and the mean over the
remaining rows is the weighted mean that a device's program computes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from sedge_edge.backends.repeat import repeatable
from sedge_edge.training.batches import Batch
from sedge_edge.training.examples import Examples
from sedge_edge.training.loop import train
from sedge_edge.training.noise import noise
from sedge_edge.training.steppers.model import Differentiated
from sedge_edge.training.steppers.stepper import stepper_of
from sedge_edge.training.trainer import Guidance, Trained, TrainingDiverged, evaluation
from sedge_emulate.training.blocks import Resident
from sedge_emulate.training.memory import keep_memory
from sedge_emulate.training.module import Module
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Precision, Task, each
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Metrics

# The batch size for evaluations: large enough for efficient kernels, small enough for the cache.
EVALUATION_ROWS = 128


class AutogradTrainer:
    """A ``FleetTrainer`` that runs one task after another."""

    name = "autograd"
    width = 1

    def __init__(
        self,
        problem: TrainingProblem,
        precision: Precision,
        device: torch.device,
        *,
        tf32: bool = False,
    ) -> None:
        self._problem, self._device, self._tf32 = problem, device, tf32
        self._engine = Module(problem, precision, device)
        self._resident = Resident(device)
        keep_memory()

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """Train the tasks in order. Returns each one's result, or ``TrainingDiverged`` if it diverged."""
        with torch.no_grad(), repeatable(self._device, self._tf32):
            return each(self._train, tasks)

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Compute the mean loss and metric of each theta (n,) on the examples paired with it, in order."""
        with torch.no_grad(), repeatable(self._device, self._tf32):
            return each(lambda model: self._evaluate(*model), models)

    def _train(self, task: Task) -> Trained:
        request, layout = task.request.moved(self._stored), self._problem.network.layout
        self._engine.freeze(request.training.freeze)
        differentiate = partial(self._differentiate, self._given(request.guidance))
        stepper = stepper_of(request, layout, differentiate, torch)
        batches = list(self._problem.batches(task))
        rows = [batch.indices[batch.weights > 0] for batch in batches]
        pairs = self._resident.batches(task.examples, rows)

        def feed(step: int, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
            return *next(pairs), self._noise(request.seed, step)

        return train(
            stepper, request.training, batches, len(batches), feed, lambda: False,
            read=_read_losses, fetch=self._read, xp=torch,
        )  # fmt: skip

    def _given(self, guidance: Guidance | None) -> dict[str, Tensor] | None:
        """Return the inputs of a guided loss on the device, or None if there is no guided loss.

        The models among them have already been copied there.
        """
        if guidance is None:
            return None
        arrays = {n: torch.from_numpy(a).to(self._device) for n, a in guidance.arrays.items()}
        return {**cast(dict[str, Tensor], guidance.models), **arrays}

    def _noise(self, seed: int, step: int) -> Tensor | None:
        """Return the random numbers (K,) of one step, on the device, or None if it draws none."""
        if not (count := self._problem.noise):
            return None
        return torch.from_numpy(noise(seed, step, count)).to(self._device)

    def _differentiate(
        self, guidance: Mapping[str, Tensor] | None, theta: Theta,
        batch: tuple[Tensor, Tensor, Tensor | None], last: bool,
    ) -> Differentiated:  # fmt: skip
        return self._engine.differentiate(cast(Tensor, theta), *batch, guidance)

    def _stored(self, theta: Theta) -> Theta:
        """Copy a vector (n,) to the device, in the engine's storage order."""
        stored = torch.empty(theta.size, device=self._device)
        self._engine.storage.write(theta, stored)
        return cast(Theta, stored)

    def _read(self, stored: Theta) -> Theta:
        return self._engine.storage.read(cast(Tensor, stored))

    def _evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        problem, count = self._problem, len(examples.targets)
        self._engine.place(cast(Tensor, self._stored(theta)))
        sums = torch.zeros(3, dtype=torch.float64, device=self._device)  # loss, metric and weight
        starts = range(0, count, EVALUATION_ROWS)
        chosen = [np.arange(start, min(start + EVALUATION_ROWS, count)) for start in starts]
        for x, y in self._resident.batches(examples, chosen):
            output = self._engine.outputs(x)
            with output.device:
                found = problem.objective.sums(output, y, torch.ones(len(y)))
            sums += torch.stack(found).double()
        return evaluation(sums.tolist(), count, problem.objective.reported)


def _read_losses(losses: Sequence[Sequence[Tensor]]) -> list[list[float]]:
    found: list[list[float]] = torch.stack([torch.stack([*step]) for step in losses]).tolist()
    return found
