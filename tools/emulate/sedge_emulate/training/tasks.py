"""The tasks and results of the emulator's trainers. Loads no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np

from sedge_edge.training.batches import Batch
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Mixed, Moments, Trained, TrainingDiverged, evaluation
from sedge_protocol.errors import SedgeError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Training
from sedge_protocol.wire.update import Metrics

Precision: TypeAlias = Literal["fp32", "bf16"]
Convolutions: TypeAlias = Literal["grouped", "unfold"]


class Unsupported(SedgeError):
    """A backend cannot train this model, or not on this machine; the message says why."""


@dataclass(frozen=True)
class Task:
    """One device's training: from theta (n,), which stays as it is, over the device's examples.

    A prox pulls towards ``anchor`` (n,), or theta where there is none; with ``gradient`` the end has one.
    ``correction`` (n,) is added to every gradient. The optimizer begins with ``moments``, if any.
    """

    theta: Theta
    examples: Examples
    training: Training
    seed: int
    anchor: Theta | None = None
    gradient: bool = False
    correction: Theta | None = None
    moments: Moments | None = None


@dataclass(frozen=True)
class MixedTask:
    """One device's training of two models side by side, as ``Trainer.train_mixed`` says."""

    sent: Theta
    own: Theta
    mix: float
    adaptive: bool
    examples: Examples
    training: Training
    seed: int


class FleetTrainer(Protocol):
    """One model, ready to train for any number of devices. Belongs to one thread.

    A task gives the same bits whatever tasks it is trained together with.
    """

    name: str
    """Its name for ``open_trainer``; on a GPU followed by what else a device's bits may depend on."""

    width: int
    """How many tasks it trains at once; calls with a multiple of it waste nothing."""

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """The end of each training, in order; one that diverges does not touch the others.

        Raises ``CodecError`` for a frozen tensor that the model does not have, and so does ``train_mixed``.
        """
        ...

    def train_mixed(self, tasks: Sequence[MixedTask]) -> list[Mixed | TrainingDiverged]:
        """The end of each training of two models, in order; every backend makes one after the other."""
        ...

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Mean loss and metric of each theta (n,), in order."""
        ...


class Record:
    """The losses of one training and its result, by the rules of a device's trainer."""

    def __init__(self, training: Training) -> None:
        self._epochs = training.local_epochs
        self._batches: list[tuple[int, float]] = []  # epoch and weight of each step

    def add(self, batch: Batch) -> None:
        """Count a step."""
        self._batches.append((batch.epoch, float(batch.weights.sum())))

    def result(
        self,
        theta: Theta,
        losses: Sequence[float],
        gradient: Theta | None = None,
        moments: Moments | None = None,
    ) -> Trained | TrainingDiverged:
        """The end of the training: theta (n,), the loss of every step, and what else is wanted."""
        if (reason := self.divergence(theta, losses)) is not None:
            return reason
        last = self._batches[-1][0]
        weights = [weight if epoch == last else 0.0 for epoch, weight in self._batches]
        loss = float(np.average(losses, weights=weights))
        return Trained(theta, loss, len(losses), gradient, moments=moments)

    def divergence(self, theta: Theta, losses: Sequence[float]) -> TrainingDiverged | None:
        """What is not finite in a model (n,) or its losses, or None."""
        for step, loss in enumerate(losses):
            if not math.isfinite(loss):
                return TrainingDiverged(f"{self._place(step)}: the loss is {loss}")
        if not np.isfinite(theta).all():
            count = np.count_nonzero(~np.isfinite(theta))
            return TrainingDiverged(
                f"{self._place(len(losses) - 1)}: {count} parameters are not finite"
            )
        return None

    def _place(self, step: int) -> str:
        return f"epoch {self._batches[step][0] + 1} of {self._epochs}, step {step + 1}"


def metrics(loss_sum: float, metric_sum: float, count: int) -> Metrics | TrainingDiverged:
    """An evaluation over ``count`` examples from its sums."""
    try:
        return evaluation(loss_sum, metric_sum, count, count)
    except TrainingDiverged as exc:
        return exc
