"""The interface of a backend: train, evaluate and predict with one bundle."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.examples import Examples, Inputs
from sedge_protocol.errors import SedgeError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Training
from sedge_protocol.wire.update import Metrics


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Where a training was stopped: after ``steps`` steps, with these ``losses`` in its unfinished epoch.

    ``vectors`` (n,) are the models and their optimizers' state, ``mix`` is a mixture's. The optimizer had
    made ``earlier`` steps before the training.
    """

    steps: int
    losses: tuple[float, ...]
    vectors: tuple[Theta, ...]
    mix: float
    earlier: int = 0


@dataclass(frozen=True, eq=False)
class Moments:
    """An optimizer's state after a training: its name, the steps it has made, its vectors (n,)."""

    optimizer: str
    steps: int
    vectors: tuple[Theta, ...]

    def begin(self, theta: Theta) -> TrainingState:
        """The state of a training from theta (n,) with this optimizer, before its first step."""
        return TrainingState(0, (), (theta, *self.vectors), 0.0, self.steps)


class TrainingStopped(SedgeError):
    """The training was stopped on purpose. It can go on from ``state``, if there is one."""

    def __init__(self, text: str, state: TrainingState | None = None) -> None:
        super().__init__(text)
        self.state = state


class TrainingDiverged(SedgeError):
    """The model or its loss is no longer finite: the settings do not suit this device's data."""


def evaluation(loss_sum: float, metric_sum: float, weight_sum: float, count: int) -> Metrics:
    """The means of an evaluation over ``count`` examples. Raises ``TrainingDiverged`` for NaN or inf."""
    means = float(loss_sum / weight_sum), float(metric_sum / weight_sum)
    for what, mean in zip(("loss", "metric"), means, strict=True):
        if not math.isfinite(mean):
            raise TrainingDiverged(f"evaluation: the mean {what} is {mean}")
    return Metrics(*means, count)


@dataclass(frozen=True)
class Trained:
    """A trained model: theta (n,), the mean loss per example over the last epoch, the number of steps.

    ``gradient`` (n,), when requested, is that of the last batch's mean loss before its step, without the
    prox term; it is 0 in frozen tensors and in statistics. ``num_examples`` is how many examples it was
    trained on, or None for all. ``moments`` is the optimizer's state, where the training keeps it.
    """

    theta: Theta
    loss: float
    steps: int
    gradient: Theta | None = None
    num_examples: int | None = None
    moments: Moments | None = None


@dataclass(frozen=True)
class Mixed:
    """Two models trained side by side (APFL): the sent one, the own one (n,), and alpha, their mix."""

    sent: Trained
    own: Theta
    mix: float


# Inputs (N, ...) to the model's outputs (N, C, ...). Thread-safe.
Predictor: TypeAlias = Callable[[Inputs], NDArray[np.float32]]


class Trainer(Protocol):
    """One bundle, ready to run. Thread-safe."""

    def train(
        self,
        theta: Theta,
        examples: Examples,
        training: Training,
        seed: int,
        stopped: Callable[[], bool],
        *,
        anchor: Theta | None = None,
        gradient: bool = False,
        correction: Theta | None = None,
        resume: TrainingState | None = None,
    ) -> Trained:
        """Train from theta (n,), which is not modified; ``stopped`` is called before every step.

        ``training.prox`` pulls towards ``anchor`` (n,), by default theta. ``gradient`` requests the last
        batch's gradient. ``correction`` (n,) is added to the gradient of every step, except in statistics,
        which have none. ``resume`` goes on where the same training was stopped, and ends with the same bits
        as without the stop, or begins with another's optimizer (``Moments.begin``); a trainer that cannot
        do so starts over, and stops without a state.

        Raises ``TrainingStopped``, ``TrainingDiverged``, ``CodecError`` for a program that fails, a frozen
        tensor that the model does not have, or what this backend cannot do, and ``ConfigError`` for user
        code that fails.
        """
        ...

    def train_mixed(
        self,
        sent: Theta,
        own: Theta,
        mix: float,
        adaptive: bool,
        examples: Examples,
        training: Training,
        seed: int,
        stopped: Callable[[], bool],
        *,
        resume: TrainingState | None = None,
    ) -> Mixed:
        """Train sent (n,) as ``train`` does, and own (n,) beside it (APFL); neither argument is modified.

        As in algorithm 1 of Deng et al. (2020), every step takes both gradients at the previous step's
        models, with m = mix own + (1 - mix) sent:

            own  <- own - learning_rate v,    v <- momentum v + mix grad f(m)
            sent <- as in ``train``, bit for bit
            mix  <- clip(mix - learning_rate <own - sent, grad f(m)>, 0, 1)

        with the rate of the step. The last line applies only when ``adaptive``, and only at the first
        step of a training, once a round, as in the authors' code; that step itself still uses the old
        mix. Only sent has the prox term. The statistics of own are those of m's step. Raises what ``train``
        raises.
        """
        ...

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        """Mean loss and metric of theta (n,). Raises ``TrainingDiverged`` for one that is not finite."""
        ...

    def predictor(self, theta: Theta) -> Predictor:
        """The model with theta (n,), for many predictions: what depends on theta alone is done here.

        Raises ``CodecError`` for a program that cannot be loaded; the predictor raises it for one that
        fails, and ``ConfigError`` for user code that does.
        """
        ...
