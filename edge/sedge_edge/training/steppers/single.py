"""The stepper for training only one model."""

from typing import Any

import numpy as np

from sedge_edge.training.steppers.model import Differentiate, ModelInTraining
from sedge_edge.training.trainer import Trained, TrainingState, TrainRequest
from sedge_protocol.layout import Layout, Theta


class Single:
    """A ``Stepper`` for one model."""

    def __init__(
        self, differentiate: Differentiate, layout: Layout, request: TrainRequest, xp: Any = np
    ) -> None:
        self.model = ModelInTraining(layout, request, xp)
        self.mix = 0.0
        self._differentiate = differentiate
        self._keeps_state = request.training.keeps_state
        self._earlier = 0 if request.moments is None else request.moments.steps
        self._wants_gradient = request.gradient
        self._gradient: Theta | None = None

    def step(self, batch: Any, rate: float, last: bool) -> list[Any]:
        """Make one step on a batch. Returns the loss."""
        found = self._differentiate(self.model.theta, batch, last)
        if last and self._wants_gradient:
            gradient = self._gradient = 1 * found.gradient  # makes a copy in any array library
            self.model.clear(gradient)
        self.model.advance(found, rate)
        return [found.loss]

    def models(self) -> list[Theta]:
        """Return theta (n,), the only model."""
        return [self.model.theta]

    def vectors(self) -> list[Theta]:
        """Return theta (n,) and the optimizer's state."""
        return self.model.vectors

    def resume(self, state: TrainingState) -> None:
        """Restore a state that the same training saved."""
        self.model.resume(self._earlier + state.steps, state.vectors)

    def trained(self, loss: float, steps: int) -> Trained:
        """Return the trained model."""
        moments = self.model.moments if self._keeps_state else None
        return Trained(self.model.theta, loss, steps, self._gradient, moments=moments)
