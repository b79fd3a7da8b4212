"""Steppers hold the models being trained, and make the training steps."""

from typing import Any, Protocol

import numpy as np

from sedge_edge.training.steppers.apfl import Mixture
from sedge_edge.training.steppers.model import Differentiate
from sedge_edge.training.steppers.single import Single
from sedge_edge.training.trainer import Trained, TrainingState, TrainRequest
from sedge_protocol.layout import Layout, Theta


class Stepper(Protocol):
    """Holds the models of one training phase and makes its steps.

    ``mix`` is the share of the device's own model in a mixture, or 0 if there is no mixture.
    """

    mix: float

    def step(self, batch: Any, rate: float, last: bool) -> list[Any]:
        """Make one step on a batch. Returns the losses in the backend's form, the reported one first."""
        ...

    def models(self) -> list[Theta]:
        """Return every model (n,) that must be finite, the reported one first."""
        ...

    def vectors(self) -> list[Theta]:
        """Return the live models and their optimizers' state. The next step changes them."""
        ...

    def resume(self, state: TrainingState) -> None:
        """Restore a state that the same training saved."""
        ...

    def trained(self, loss: float, steps: int) -> Trained:
        """Return the training's result, given its mean loss and number of steps."""
        ...


def stepper_of(
    request: TrainRequest, layout: Layout, differentiate: Differentiate, xp: Any = np
) -> Stepper:
    """Return the stepper for a training phase.

    Raises ``CodecError`` if the model lacks a frozen tensor.
    """
    if request.second is not None:
        return Mixture(differentiate, layout, request, request.second, xp)
    return Single(differentiate, layout, request, xp)
