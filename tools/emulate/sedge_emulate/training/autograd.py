"""One device after another by autograd, on one core each: the trainer of convolutions on a CPU.

Batches are trimmed to their rows of weight one: padding is never computed, and the mean over the rest is
the weighted mean that a device's program computes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sedge_edge.training.examples import Examples
from sedge_edge.training.steppers import trained_only
from sedge_edge.training.trainer import Mixed, Trained, TrainingDiverged
from sedge_emulate.training.blocks import Resident
from sedge_emulate.training.memory import keep_memory
from sedge_emulate.training.mixture import Mixture
from sedge_emulate.training.module import Module
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.repeat import repeatable
from sedge_emulate.training.tasks import (
    MixedTask,
    Precision,
    Record,
    Task,
    metrics,
)
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Training
from sedge_protocol.wire.update import Metrics

# Rows of an evaluation's batch: large enough for the kernels, small enough for the cache.
EVALUATION_ROWS = 128


class AutogradTrainer:
    """``FleetTrainer``: one task after the other."""

    name = "autograd"
    width = 1

    def __init__(self, problem: Problem, precision: Precision, device: torch.device) -> None:
        self._problem, self._device = problem, device
        self._engine = Module(problem, precision, device)
        self._resident = Resident(device)
        keep_memory()

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """The end of each training, in order."""
        with torch.no_grad(), repeatable(self._device):
            return [self._train(task) for task in tasks]

    def train_mixed(self, tasks: Sequence[MixedTask]) -> list[Mixed | TrainingDiverged]:
        """The end of each training of two models, in order."""
        with torch.no_grad(), repeatable(self._device):
            return [self._train_mixed(task) for task in tasks]

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Mean loss and accuracy of each theta (n,), in order."""
        with torch.no_grad(), repeatable(self._device):
            return [self._evaluate(theta, examples) for theta, examples in models]

    def _train(self, task: Task) -> Trained | TrainingDiverged:
        record, losses = Record(task.training), list[Tensor]()
        engine, gradient = self._engine, None
        engine.start(task.theta, task.training, task.anchor)
        correction = self._stored(task)
        velocity = None if correction is None else torch.zeros_like(correction)
        batches = list(self._problem.batches(task))
        for batch in batches:
            rows = batch.indices[batch.weights > 0]
            losses.append(engine.differentiate(*self._resident.rows(task.examples, rows)))
            record.add(batch)
            if task.gradient and batch is batches[-1]:
                gradient = engine.storage.read(engine.gradient())
            engine.step()
            if correction is not None and velocity is not None:
                # SGD with momentum is linear: the velocities of gradients and of corrections add up.
                velocity.mul_(task.training.momentum).add_(correction)
                engine.place(engine.values - task.training.learning_rate * velocity)
        theta = engine.storage.read(engine.values)
        return record.result(theta, torch.stack(losses).tolist(), gradient)

    def _stored(self, task: Task) -> Tensor | None:
        """A task's correction (n,) as the engine stores its values."""
        if task.correction is None:
            return None
        layout, stored = self._problem.network.layout, torch.zeros_like(self._engine.values)
        correction = trained_only(task.correction, layout, task.training.freeze)
        self._engine.storage.write(correction, stored)
        return stored

    def _train_mixed(self, task: MixedTask) -> Mixed | TrainingDiverged:
        both = Mixture(self._engine, self._problem.network.layout, task)
        record, losses, mixed_losses = Record(task.training), list[Tensor](), list[Tensor]()
        for batch in self._problem.batches(task):
            rows = batch.indices[batch.weights > 0]
            x, y = self._resident.rows(task.examples, rows)
            mixed_losses.append(both.step_own(x, y))
            losses.append(both.step_sent(x, y))
            record.add(batch)
        reason = record.divergence(both.own, torch.stack(mixed_losses).tolist())
        sent = record.result(both.sent, torch.stack(losses).tolist())
        if isinstance(sent, TrainingDiverged):
            return sent
        return reason or Mixed(sent, both.own, both.mix)

    def _evaluate(self, theta: Theta, examples: Examples) -> Metrics | TrainingDiverged:
        problem, count = self._problem, len(examples.targets)
        self._engine.start(theta, Training())
        sums = torch.zeros(2, dtype=torch.float64)  # loss, correct answers
        for start in range(0, count, EVALUATION_ROWS):
            rows = np.arange(start, min(start + EVALUATION_ROWS, count))
            x, y = self._resident.rows(examples, rows)
            output = self._engine.outputs(x)
            with output.device:
                sums[0] += problem.loss(output, y).sum().double().cpu()
            if problem.classifies:
                sums[1] += (output.argmax(1) == y).sum().cpu()
        return metrics(float(sums[0]), float(sums[1]), count)
