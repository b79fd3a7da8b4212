"""The training loop, which makes one step per batch, on a device and in the emulator.

The stepper (steppers/) defines what a step does. The backend determines the form in which the stepper
receives a batch.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from sedge_edge.training.batches import Batch
from sedge_edge.training.steppers.average import add_to_mean, mean_weight
from sedge_edge.training.steppers.stepper import Stepper
from sedge_edge.training.trainer import (
    Move,
    Trained,
    TrainingDiverged,
    TrainingState,
    TrainingStopped,
)
from sedge_protocol.layout import Theta
from sedge_protocol.wire.training import Training

# Converts the losses of steps from a backend's own form to numbers.
ReadLosses: TypeAlias = Callable[[Sequence[Sequence[Any]]], list[list[float]]]


def as_numbers(losses: Sequence[Sequence[Any]]) -> list[list[float]]:
    """Convert the losses of a backend that returns them as numbers."""
    return [[float(loss) for loss in step] for step in losses]


class Losses:
    """The losses of the steps in one training phase. Also formats the names of steps for messages."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._steps: list[tuple[int, float]] = []  # the epoch and weight of each step
        self.values: list[float] = []  # losses of the model that is reported

    def begin(self, batch: Batch) -> None:
        """Count a step. Its losses are added later."""
        self._steps.append((batch.epoch, float(batch.weights.sum())))

    def add(self, losses: Sequence[float]) -> None:
        """Add the losses of the next step, the reported one first.

        Raises ``TrainingDiverged`` if one of them is not finite.
        """
        for loss in losses:
            if not math.isfinite(loss):
                raise TrainingDiverged(f"{self.place(len(self.values))}: the loss is {loss}")
        self.values.append(losses[0])

    def check(self, *models: Theta) -> None:
        """Raise ``TrainingDiverged`` if one of the models (n,) is not finite after the last step."""
        for theta in models:
            if count := theta.size - np.count_nonzero(np.isfinite(theta)):
                place = self.place(len(self._steps) - 1)
                raise TrainingDiverged(f"{place}: {count} parameters are not finite")

    def place(self, step: int) -> str:
        """Return the name that messages use for a step."""
        return f"epoch {self._steps[step][0] + 1} of {self._epochs}, step {step + 1}"

    @property
    def of_last_epoch(self) -> list[float]:
        """The losses known so far, of the reported model, in the epoch of the last step."""
        last = self._steps[-1][0]
        pairs = zip(self._steps, self.values, strict=False)
        return [loss for (epoch, _), loss in pairs if epoch == last]

    @property
    def mean(self) -> float:
        """The mean loss per example over the last epoch."""
        last = self._steps[-1][0]
        weights = [weight for epoch, weight in self._steps if epoch == last]
        return float(np.average(self.of_last_epoch, weights=weights))


def train(
    stepper: Stepper,
    training: Training,
    batches: Iterable[Batch],
    total: int,
    feed: Callable[[int, Batch], Any],
    stopped: Callable[[], bool],
    resume: TrainingState | None = None,
    *,
    read: ReadLosses = as_numbers,
    fetch: Move | None = None,
    xp: Any = np,
) -> Trained:
    """Make all ``total`` steps of a training phase.

    ``feed`` turns a step and its batch into the stepper's input. Every loss is checked after its step, and
    every model after its epoch. If losses and vectors are on another processor, ``read`` and ``fetch``
    retrieve them only at the end, so that no step waits for a transfer. Raises ``TrainingStopped`` and
    ``TrainingDiverged``.
    """
    losses, unread = Losses(training.local_epochs), list[list[Any]]()
    mean: Theta | None = xp.zeros_like(stepper.models()[0]) if training.average else None
    past: list[float] = []  # the losses of steps made before the stop
    if resume is not None:
        past = [0.0] * (resume.steps - len(resume.losses)) + [*resume.losses]
        stepper.resume(resume)
        mean = None if resume.mean is None else resume.mean.copy()

    def look() -> None:
        for step in read(unread):
            losses.add(step)
        unread.clear()

    epoch = 0
    for step, batch in enumerate(batches):
        if fetch is None and batch.epoch > epoch and step > len(past):
            losses.check(*stepper.models())
        epoch = batch.epoch
        losses.begin(batch)
        if step < len(past):
            losses.add(past[step : step + 1])
            continue
        if stopped():
            vectors = tuple(stepper.vectors())
            state = TrainingState(step, tuple(losses.of_last_epoch), vectors, stepper.mix, mean)
            raise TrainingStopped(f"{losses.place(step)}: stopped", state)
        with np.errstate(over="ignore", invalid="ignore"):  # `look` detects divergence
            unread.append(
                stepper.step(feed(step, batch), training.rate(step, total), step == total - 1)
            )
        if mean is not None and (weight := mean_weight(training, step, total)):
            add_to_mean(mean, stepper.models()[0], weight)
        if fetch is None:
            look()
    look()
    ended = replace(stepper.trained(losses.mean, total), mean=mean)
    if fetch is not None:
        ended = ended.moved(fetch)
    losses.check(ended.theta, *([] if ended.second is None else [ended.second.theta]))
    return ended
