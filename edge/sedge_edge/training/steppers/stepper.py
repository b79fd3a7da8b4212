"""The stepper of a training: which models it moves, and how a step changes them."""

from typing import Any, Protocol

import numpy as np

from sedge_edge.training.steppers.apfl import Mixture
from sedge_edge.training.steppers.model import Differentiate
from sedge_edge.training.steppers.single import Single
from sedge_edge.training.trainer import Trained, TrainingState, TrainRequest
from sedge_protocol.layout import Layout, Theta


class Stepper(Protocol):
    """The models of one training, and how a step changes them; ``mix`` is a mixture's, otherwise 0."""

    mix: float

    def step(self, batch: Any, rate: float, last: bool) -> list[Any]:
        """One step on a batch. Returns the losses, the reported one first, as the backend gives them."""
        ...

    def models(self) -> list[Theta]:
        """Every model (n,) that must be finite, the reported one first."""
        ...

    def vectors(self) -> list[Theta]:
        """The live models and their optimizers' state; a step changes them."""
        ...

    def resume(self, state: TrainingState) -> None:
        """Continue from a state of this training."""
        ...

    def trained(self, loss: float, steps: int) -> Trained:
        """End the training, after this many steps with this loss."""
        ...


def stepper_of(
    request: TrainRequest, layout: Layout, differentiate: Differentiate, xp: Any = np
) -> Stepper:
    """The stepper of a training. Raises ``CodecError`` for frozen tensors that the model lacks."""
    if request.second is not None:
        return Mixture(differentiate, layout, request, request.second, xp)
    return Single(differentiate, layout, request, xp)
