"""Two models of one device on one ``Module``: the sent one, and one of the device's own (APFL).

The engine's own steps, velocity and anchor belong to the sent model, which ends as in a training without
the other. For the mixture's gradient the engine is placed at the mixture and then back: two copies a step.
"""

import torch
from torch import Tensor

from sedge_edge.training.steppers import tensor_slices
from sedge_emulate.training.module import Module
from sedge_emulate.training.tasks import MixedTask
from sedge_protocol.layout import Layout, Theta


class Mixture:
    """The two models of a task between its steps; ``Trainer.train_mixed`` has the rules.

    A step is ``step_own`` and then ``step_sent`` on the same batch.
    """

    def __init__(self, engine: Module, layout: Layout, task: MixedTask) -> None:
        self._engine, self._training = engine, task.training
        engine.start(task.sent, task.training)
        self._sent = engine.values.clone()
        self._own = torch.empty_like(self._sent)
        engine.storage.write(task.own, self._own)
        self._velocity = torch.zeros_like(self._own)
        self._statistics = tensor_slices(layout, set(layout.statistics) - set(task.training.freeze))
        self.mix = task.mix
        self._adapts = task.adaptive

    @property
    def sent(self) -> Theta:
        """The model (n,) that is sent."""
        return self._engine.storage.read(self._sent)

    @property
    def own(self) -> Theta:
        """The device's own model (n,)."""
        return self._engine.storage.read(self._own)

    def step_own(self, x: Tensor, y: Tensor) -> Tensor:
        """Move own model and mix by the mixture's gradient on x (B, ...), y (B,); gives its loss."""
        mix, rate = self.mix, self._training.learning_rate
        self._engine.place((1 - mix) * self._sent + mix * self._own)
        loss = self._engine.differentiate(x, y)
        gradient = self._engine.gradient()
        if self._adapts:
            self._adapts = False
            slope = float(((self._own - self._sent) * gradient).sum(dtype=torch.float64))
            self.mix = min(max(mix - rate * slope, 0.0), 1.0)
        self._velocity.mul_(self._training.momentum).add_(gradient, alpha=mix)
        self._own.add_(self._velocity, alpha=-rate)
        for place in self._statistics:
            self._own[place] = self._engine.values[place]
        return loss

    def step_sent(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of the sent model on x (B, ...), y (B,); gives its loss."""
        self._engine.place(self._sent)
        loss = self._engine.differentiate(x, y)
        self._engine.step()
        self._sent.copy_(self._engine.values)
        return loss
