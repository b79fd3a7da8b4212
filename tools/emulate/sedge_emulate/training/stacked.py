"""Many devices at once for models of linear layers: their weights stacked, products as one bmm.

Explicit forward and backward passes over theta (D, n) as it lies: a layer's weights are a view (D, O, I) of
it, and without momentum the gradient's product is added to them straight away, which spares a gradient
vector and a pass of SGD. The width is fixed; a device's bits do not depend on its company.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sedge_edge.data import Examples
from sedge_edge.training.step_loop import places
from sedge_edge.training.trainer import Mixed, Trained, TrainingDiverged
from sedge_emulate.training import graph
from sedge_emulate.training.blocks import (
    Block,
    Ends,
    Resident,
    evaluate_in_blocks,
    stacked_anchors,
    stacked_thetas,
    train_in_blocks,
)
from sedge_emulate.training.losses import loss_and_gradient
from sedge_emulate.training.memory import keep_memory
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.repeat import repeatable
from sedge_emulate.training.sequential import SequentialTrainer, open_sequential
from sedge_emulate.training.tasks import MixedTask, Precision, Task, Unsupported
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Metrics

# Parameters of all devices of a stack together: 8 MB, a fair share of a last-level cache.
_STACKED_PARAMETERS = 2**21
_LARGEST_WIDTH = {"cpu": 64, "cuda": 256}


@dataclass(frozen=True)
class _Product:
    """A linear layer of all devices: weights (D, O, I), biases (D, O) or none."""

    weight: Tensor
    bias: Tensor | None


class StackedTrainer:
    """``FleetTrainer`` for flat inputs, linear layers and ReLUs; ``Unsupported`` for other models."""

    name = "stacked"

    def __init__(self, problem: Problem, precision: Precision, device: torch.device) -> None:
        self._layers = _linear_chain(problem)
        self._problem, self._device = problem, device
        self._kind = torch.bfloat16 if precision == "bf16" else torch.float32
        layout = problem.network.layout
        self._tensors = layout.by_name
        widest = _LARGEST_WIDTH.get(device.type, _LARGEST_WIDTH["cpu"])
        fitting = max(4, _STACKED_PARAMETERS // layout.size) if device.type == "cpu" else widest
        self.width = min(widest, 1 << (fitting.bit_length() - 1))
        self._resident = Resident(device)
        self._precision: Precision = precision
        keep_memory()

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """The end of each training, in order."""
        with torch.no_grad(), repeatable(self._device):
            return train_in_blocks(self._problem, tasks, self.width, self._resident, self._run)

    @cached_property
    def _single(self) -> SequentialTrainer:
        return open_sequential("sequential", self._problem, self._precision, self._device)

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Mean loss and accuracy of each theta (n,), in order."""
        rows = max(self._problem.batch_size, 64)
        with torch.no_grad(), repeatable(self._device):
            return evaluate_in_blocks(models, rows, self.width, self._resident, self._evaluate)

    def train_mixed(self, tasks: Sequence[MixedTask]) -> list[Mixed | TrainingDiverged]:
        """The end of each training of two models, in order, one after the other."""
        return self._single.train_mixed(tasks)

    def _run(self, tasks: Sequence[Task], block: Block) -> Ends:
        training = tasks[0].training
        frozen = places(self._problem.network.layout, training.freeze)
        values = stacked_thetas([task.theta for task in tasks], self.width, self._device)
        anchor = stacked_anchors(tasks, self.width, self._device) if training.prox else values
        plain = not (training.momentum or training.prox or frozen)
        velocity = values if plain else torch.zeros_like(values)
        gradient = torch.zeros_like(values) if tasks[0].gradient else None
        layers = self._products(values)
        into = layers if plain else self._products(velocity)
        # Without momentum a gradient is subtracted where it arises; with it, it joins the velocity.
        scale = -training.learning_rate if plain else 1.0
        ends = Ends(block)
        for step in range(len(block.rows)):
            x, y, weights = block.batch(step)
            shares = weights / weights.sum(1, keepdim=True).clamp_min(1.0)
            if gradient is not None and block.ending(step):
                # Once more, for momentum, prox and the short way hide it.
                self._step(layers, self._products(gradient.zero_()), 1.0, x, y, shares)
                for place in frozen:
                    gradient[:, place] = 0
            if not plain:
                velocity.mul_(training.momentum)
            if training.prox:
                velocity.add_(values - anchor, alpha=training.prox)
            losses = self._step(layers, into, scale, x, y, shares)
            for place in frozen:
                velocity[:, place] = 0
            if not plain:
                values.add_(velocity, alpha=-training.learning_rate)
            ends.add(values, losses, gradient)
        return ends

    def _step(
        self, layers: list[_Product], into: list[_Product], scale: float,
        x: Tensor, y: Tensor, shares: Tensor,
    ) -> Tensor:  # fmt: skip
        """Add ``scale`` times the gradient to ``into``; gives each device's loss (D,)."""
        inputs = self._forward(layers, x)
        loss, passed = loss_and_gradient(self._problem.loss, inputs.pop(), y, shares)
        for place in reversed(range(len(layers))):
            x, weight = inputs[place], layers[place].weight
            below = self._bmm(passed, weight) if place else None
            self._add(into[place].weight, passed.transpose(1, 2), x, scale)
            bias = into[place].bias
            if bias is not None:
                bias.add_(passed.sum(1), alpha=scale)
            if below is not None:
                passed = torch.where(x > 0, below, 0.0) if self._rectified(place) else below
        return loss

    def _forward(self, layers: list[_Product], x: Tensor) -> list[Tensor]:
        """The input of every layer, (D, B, I), and last the outputs (D, B, C)."""
        found = [x.flatten(2)]
        for place, layer in enumerate(layers):
            if place and self._rectified(place):
                found[-1].clamp_min_(0)
            transposed = layer.weight.transpose(1, 2)
            if layer.bias is None or self._kind is torch.bfloat16:
                output = self._bmm(found[-1], transposed)
                if layer.bias is not None:
                    output += layer.bias[:, None]
            else:
                output = torch.baddbmm(layer.bias[:, None], found[-1], transposed)
            found.append(output)
        return found

    def _bmm(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.bmm(left.to(self._kind), right.to(self._kind)).float()

    def _add(self, into: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
        if self._kind is torch.bfloat16:
            into.add_(self._bmm(left, right), alpha=scale)
        else:
            into.baddbmm_(left, right, alpha=scale)

    def _rectified(self, place: int) -> bool:
        """Whether a ReLU stands before a layer."""
        return self._layers[place][1]

    def _products(self, vectors: Tensor) -> list[_Product]:
        """The layers as views of vectors (D, n)."""

        def view(name: str) -> Tensor:
            tensor = self._tensors[name]
            return vectors[:, tensor.slice].view(len(vectors), *tensor.shape)

        return [
            _Product(view(layer.weight), view(layer.bias) if layer.bias else None)
            for layer, _ in self._layers
        ]

    def _evaluate(self, thetas: Sequence[Theta], block: Block) -> list[tuple[float, float]]:
        layers = self._products(stacked_thetas(thetas, self.width, self._device))
        sums = torch.zeros(2, self.width, dtype=torch.float64, device=self._device)
        for step in range(len(block.rows)):
            x, y, weights = block.batch(step)
            output = self._forward(layers, x)[-1]
            with self._device:
                rows = self._problem.loss(output.flatten(0, 1), y.flatten()).view(y.shape)
            sums[0] += torch.where(weights > 0, rows, 0.0).sum(1)
            if self._problem.classifies:
                sums[1] += ((output.argmax(-1) == y) * weights).sum(1)
        return [(loss, right) for loss, right in sums.t().tolist()][: len(thetas)]


def _linear_chain(problem: Problem) -> list[tuple[graph.Linear, bool]]:
    """The model's linear layers, each with whether a ReLU stands before it. Raises ``Unsupported``."""
    found: list[tuple[graph.Linear, bool]] = []
    layers = graph.chain(problem.module)
    shapes = {t.name: t.shape for t in problem.network.layout.tensors}
    if sorted(graph.parameters_of(layers)) != sorted(shapes):
        raise Unsupported("a layer is used twice, or the model has parameters that none uses")
    flat = len(problem.input.shape) == 1
    rectified = False
    for layer in layers:
        if isinstance(layer, graph.Linear) and flat:
            found.append((layer, rectified))
            rectified = False
        elif isinstance(layer, graph.Relu) and found:
            rectified = True
        elif isinstance(layer, graph.Flatten):
            flat = True
        else:
            raise Unsupported(f"{layer}: expected linear layers and ReLUs between them")
    if not found or rectified or problem.input.dtype != "float32":
        raise Unsupported("expected float32 inputs and a linear layer at the end")
    return found
