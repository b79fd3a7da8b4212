"""One device after another by autograd, on one core each: the trainer of convolutions on a CPU.

Batches are trimmed to their rows of weight one: padding is never computed, and the mean over the rest is
the weighted mean that a device's program computes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from sedge_edge.backends.repeat import repeatable
from sedge_edge.training.examples import Examples
from sedge_edge.training.noise import noise
from sedge_edge.training.steppers import (
    Differentiated,
    MixtureStepper,
    Model,
    PlainStepper,
    Stepper,
)
from sedge_edge.training.trainer import Mixed, Trained, TrainingDiverged
from sedge_emulate.training.blocks import Resident
from sedge_emulate.training.memory import keep_memory
from sedge_emulate.training.module import Module
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import (
    MixedTask,
    Precision,
    Record,
    Task,
    metrics,
)
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Metrics

# Rows of an evaluation's batch: large enough for the kernels, small enough for the cache.
EVALUATION_ROWS = 128


class AutogradTrainer:
    """``FleetTrainer``: one task after the other."""

    name = "autograd"
    width = 1

    def __init__(
        self, problem: Problem, precision: Precision, device: torch.device, *, tf32: bool = False
    ) -> None:
        self._problem, self._device, self._tf32 = problem, device, tf32
        self._engine = Module(problem, precision, device)
        self._resident = Resident(device)
        keep_memory()

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """The end of each training, in order."""
        with torch.no_grad(), repeatable(self._device, self._tf32):
            return [self._train(task) for task in tasks]

    def train_mixed(self, tasks: Sequence[MixedTask]) -> list[Mixed | TrainingDiverged]:
        """The end of each training of two models, in order."""
        with torch.no_grad(), repeatable(self._device, self._tf32):
            return [self._train_mixed(task) for task in tasks]

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Mean loss and metric of each theta (n,), in order."""
        with torch.no_grad(), repeatable(self._device, self._tf32):
            return [self._evaluate(theta, examples) for theta, examples in models]

    def _train(self, task: Task) -> Trained | TrainingDiverged:
        recipe = task.training
        self._engine.freeze(recipe.freeze)
        vectors = (task.theta, task.anchor, task.correction)
        start, anchor, correction = (None if v is None else self._stored(v) for v in vectors)
        layout = self._problem.network.layout
        model = Model(layout, cast(Theta, start), recipe, anchor, correction, torch)
        if (held := task.moments) is not None:
            model.resume(held.steps, [model.theta, *map(self._stored, held.vectors)])
        stepper = PlainStepper(self._differentiate, model, task.gradient)
        record, (losses,) = self._steps(task, stepper)
        gradient = None if stepper.gradient is None else self._read(stepper.gradient)
        ended, moments = model.moments, None
        if recipe.keeps_state:
            moments = replace(ended, vectors=tuple(map(self._read, ended.vectors)))
        return record.result(self._read(model.theta), losses, gradient, moments)

    def _train_mixed(self, task: MixedTask) -> Mixed | TrainingDiverged:
        recipe = task.training
        self._engine.freeze(recipe.freeze)
        start, own = self._stored(task.sent), self._stored(task.own)
        layout = self._problem.network.layout
        both = MixtureStepper(
            self._differentiate, layout, start, own, task.mix, task.adaptive, recipe, torch
        )
        record, (losses, mixed_losses) = self._steps(task, both)
        ended = self._read(both.own.theta)
        reason = record.divergence(ended, mixed_losses)
        sent = record.result(self._read(both.sent.theta), losses)
        if isinstance(sent, TrainingDiverged):
            return sent
        return reason or Mixed(sent, ended, both.mix)

    def _steps(self, task: Task | MixedTask, stepper: Stepper) -> tuple[Record, list[list[float]]]:
        """All steps of a training. Returns the losses of each of its models."""
        training, losses = task.training, list[Tensor]()
        record = Record(training)
        batches = list(self._problem.batches(task))
        rows = [batch.indices[batch.weights > 0] for batch in batches]
        for batch, (x, y) in zip(batches, self._resident.batches(task.examples, rows), strict=True):
            drawn = x, y, self._noise(task.seed, len(losses))
            rate = training.rate(len(losses), len(batches))
            losses.append(torch.stack(stepper.step(drawn, rate, batch is batches[-1])))
            record.add(batch)
        return record, torch.stack(losses).t().tolist()

    def _noise(self, seed: int, step: int) -> Tensor:
        """The random numbers (K,) of a step."""
        if not (count := self._problem.noise):
            return torch.empty(0, device=self._device)
        return torch.from_numpy(noise(seed, step, count)).to(self._device)

    def _differentiate(
        self, theta: Theta, batch: tuple[Tensor, Tensor, Tensor], last: bool
    ) -> Differentiated:
        return self._engine.differentiate(cast(Tensor, theta), *batch)

    def _stored(self, theta: Theta) -> Theta:
        """A vector (n,) as the engine stores its values."""
        stored = torch.empty(theta.size, device=self._device)
        self._engine.storage.write(theta, stored)
        return cast(Theta, stored)

    def _read(self, stored: Theta) -> Theta:
        return self._engine.storage.read(cast(Tensor, stored))

    def _evaluate(self, theta: Theta, examples: Examples) -> Metrics | TrainingDiverged:
        problem, count = self._problem, len(examples.targets)
        self._engine.place(cast(Tensor, self._stored(theta)))
        sums = torch.zeros(2, dtype=torch.float64, device=self._device)  # loss, metric
        starts = range(0, count, EVALUATION_ROWS)
        chosen = [np.arange(start, min(start + EVALUATION_ROWS, count)) for start in starts]
        for x, y in self._resident.batches(examples, chosen):
            output = self._engine.outputs(x)
            with output.device:
                found = [rows(output, y).sum().double() for rows in problem.objective]
            sums += torch.stack(found)
        loss, metric = sums.tolist()
        return metrics(loss, metric, count)
