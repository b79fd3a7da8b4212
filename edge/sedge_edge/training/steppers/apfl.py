"""APFL trains two models: the one that is sent, and the device's own part of a mixture.

As in algorithm 1 of Deng et al. (2020), every step computes both gradients at the previous step's models,
with m = mix own + (1 - mix) sent:

    own  <- own - rate v,    v <- momentum v + mix grad f(m)
    sent <- as without the other model, bit for bit
    mix  <- clip(mix - rate <own - sent, grad f(m)>, 0, 1)

The last line applies only if ``adaptive`` and, as in the authors' code, only at the first step of training
in each round. That step itself still uses the old mix. Only sent has the prox term. The statistics of own
are those after m's forward pass.
"""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from sedge_edge.training.steppers.model import Differentiate, ModelInTraining
from sedge_edge.training.trainer import SecondModel, Trained, TrainingState, TrainRequest
from sedge_protocol.layout import Layout, Theta


class Mixture:
    """A ``Stepper`` for two models: the one that is sent and the device's own."""

    def __init__(
        self, differentiate: Differentiate, layout: Layout, request: TrainRequest,
        second: SecondModel, xp: Any = np,
    ) -> None:  # fmt: skip
        alone = msgspec.structs.replace(request.training, prox=0.0)
        self.sent = ModelInTraining(layout, request, xp)
        self.own = ModelInTraining(layout, TrainRequest(second.theta, alone, request.seed), xp)
        self.mix = second.mix
        self._second, self._adapts = second, second.adaptive
        self._differentiate, self._xp = differentiate, xp

    def step(self, batch: Any, rate: float, last: bool) -> list[Any]:
        """Make one step of both models on a batch.

        Returns the losses of the sent model and of the mixture.
        """
        mixed = (1 - self.mix) * self.sent.theta
        mixed += self.mix * self.own.theta
        found = self._differentiate(mixed, batch, False)
        self.own.clear(found.gradient)
        mix = self._next_mix(found.gradient, rate)
        gradient = found.gradient
        gradient *= self.mix
        self.own.advance(found, rate)
        self.mix = mix
        sent = self._differentiate(self.sent.theta, batch, last)
        self.sent.advance(sent, rate)
        return [sent.loss, found.loss]

    def models(self) -> list[Theta]:
        """Return the model that is sent (n,), and the device's own."""
        return [self.sent.theta, self.own.theta]

    def vectors(self) -> list[Theta]:
        """Return both models (n,), each followed by its optimizer's state."""
        return [*self.sent.vectors, *self.own.vectors]

    def resume(self, state: TrainingState) -> None:
        """Restore a state that the same training saved."""
        half = len(state.vectors) // 2
        self.sent.resume(state.steps, state.vectors[:half])
        self.own.resume(state.steps, state.vectors[half:])
        self.mix, self._adapts = state.mix, self._adapts and not state.steps

    def trained(self, loss: float, steps: int) -> Trained:
        """Return the model to send, and the device's own model together with its mixing weight."""
        second = replace(self._second, theta=self.own.theta, mix=self.mix)
        return Trained(self.sent.theta, loss, steps, second=second)

    def _next_mix(self, gradient: Theta, rate: float) -> float:
        """Return the mix after this step, given the mixture's gradient (n,)."""
        if not self._adapts:
            return self.mix
        self._adapts = False
        products = self.own.theta - self.sent.theta
        products *= gradient
        derivative = float(self._xp.sum(products, dtype=self._xp.float64))
        return min(max(self.mix - rate * derivative, 0.0), 1.0)
