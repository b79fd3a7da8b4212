"""What a backend must do: train, evaluate and predict with one bundle."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.examples import Examples, Inputs
from sedge_protocol.errors import SedgeError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Training
from sedge_protocol.wire.update import Metrics


class TrainingStopped(SedgeError):
    """Whoever asked for the training asked it to stop; nothing is wrong."""


class TrainingDiverged(SedgeError):
    """The model or its loss is no longer finite: the settings do not suit this device's data."""


@dataclass(frozen=True)
class Trained:
    """The end of a training: theta (n,), the mean loss per example over the last epoch, and its steps.

    ``gradient`` (n,), where it was asked for, is that of the last batch's mean loss before its step,
    without the prox term; it is 0 in frozen tensors and in statistics.
    """

    theta: Theta
    loss: float
    steps: int
    gradient: Theta | None = None


@dataclass(frozen=True)
class Mixed:
    """The end of a training of two models side by side (APFL): one sent, one own (n,), and alpha."""

    sent: Trained
    own: Theta
    mix: float


class Trainer(Protocol):
    """One bundle, ready to run. May be used by several threads at once."""

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
    ) -> Trained:
        """Train from theta (n,), which stays as it is; ``stopped`` is asked before every step.

        ``training.prox`` pulls towards ``anchor`` (n,), or towards theta where there is none. With
        ``gradient`` the end has the last batch's. ``correction`` (n,) is added to the gradient of every
        step, but for statistics, which have none. Raises ``TrainingStopped``, ``TrainingDiverged``, or
        ``CodecError`` for a program that fails or a frozen tensor that the model does not have.
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
    ) -> Mixed:
        """Train sent (n,) as ``train`` does and own (n,) beside it; both stay as they are (APFL).

        Every step takes both gradients where the step before ended, as algorithm 1 of Deng et al. (2020)
        does, with m = mix own + (1 - mix) sent:

            own  <- own - learning_rate v,    v <- momentum v + mix grad f(m)
            sent <- as in ``train``, bit for bit
            mix  <- clip(mix - learning_rate <own - sent, grad f(m)>, 0, 1)

        The last line is for ``adaptive`` and the first step of a training only, once a round, as the
        authors' code has it; the step itself still uses the mix before. The prox term is sent's alone.
        Statistics of own are those that m's step gives. Raises what ``train`` raises.
        """
        ...

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        """Mean loss and accuracy of theta (n,). Raises ``TrainingDiverged`` when the loss is not finite."""
        ...

    def predict(self, theta: Theta, inputs: Inputs) -> NDArray[np.float32]:
        """The model's outputs (N, C) for inputs (N, ...)."""
        ...
