"""Trains many devices at once with torch.func's vmap over stacked thetas, for any model and torch device.

The traced step is the exporter's own (``sedge_export.subject.network``), so models, momentum, prox and
running statistics are exactly what devices run. vmap turns convolutions into grouped ones and matrix
products into bmm. Examples stay on the device, and all shapes are fixed. The number of devices at once
depends only on the model and its batch size, because a device's exact results may depend on it. On a CPU
this is faster only for the smallest models.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from sedge_edge.backends.repeat import repeatable
from sedge_edge.backends.rows import Objective, Rows
from sedge_edge.training.examples import Examples
from sedge_edge.training.noise import noise
from sedge_edge.training.optimizers import Rate
from sedge_edge.training.steppers.average import add_to_mean, mean_weight
from sedge_edge.training.steppers.model import Differentiated, ModelInTraining
from sedge_edge.training.trainer import Trained, TrainingDiverged, TrainRequest
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.blocks import (
    Block,
    Ends,
    Resident,
    evaluate_in_blocks,
    stacked_thetas,
    train_in_blocks,
)
from sedge_emulate.training.convolutions import forms
from sedge_emulate.training.fitting import evaluation_rows, fitting_width
from sedge_emulate.training.graphs import Graphed
from sedge_emulate.training.memory import keep_memory
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import (
    Convolutions,
    Precision,
    Task,
    Unsupported,
)
from sedge_export.subject.network import BATCH_NORMS, Network
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Metrics

_Answer = TypeVar("_Answer")


class VectorisedTrainer:
    """A ``FleetTrainer`` that trains ``width`` devices at once on any torch device.

    ``tf32``, ``graphs`` and ``convolutions`` are options under ``[trainer]`` in the fleet file;
    ``processes`` is the number of processes that share the device. Raises ``Unsupported`` if the
    device's memory is too small.
    """

    name = "vectorised"

    def __init__(
        self,
        problem: TrainingProblem,
        precision: Precision,
        device: torch.device,
        width: int | None = None,
        *,
        tf32: bool = False,
        graphs: bool = False,
        convolutions: Convolutions = "grouped",
        processes: int = 1,
    ) -> None:
        self._problem, self._device, self._tf32 = problem, device, tf32
        self._precision: Precision = precision
        self._convolutions: Convolutions = convolutions
        self._gradients = Graphed(self._each_gradient, device) if graphs else self._each_gradient
        self._sums = Graphed(self._each_sum, device) if graphs else self._each_sum
        self._network = Network(
            problem.module,
            Objective(_in_float32(problem.objective.loss), _in_float32(problem.objective.metric)),
        )
        for module in self._network.model.modules():
            if isinstance(module, BATCH_NORMS):
                _make_batching(module)
        self._network.model.to(device)
        self._resident = Resident(device)
        self.width = width or fitting_width(problem, device, convolutions, graphs, processes)
        if device.type == "cpu":
            keep_memory()
        elif device.type == "cuda":
            card = torch.cuda.get_device_name(device)
            self.name = f"{self.name}, {self.width} devices at once on {card}"

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """Train each task. Returns the results in the order of ``tasks``.

        A task that diverged has ``TrainingDiverged`` as its result. Tasks with a mixture, a kept
        optimizer or a guided loss are trained one by one.
        """
        alone = [place for place, task in enumerate(tasks) if _is_single(task.request)]
        others = [place for place in range(len(tasks)) if place not in alone]
        found: dict[int, Trained | TrainingDiverged] = {}
        if alone:
            ends = self._single.train([tasks[place] for place in alone])
            found |= zip(alone, ends, strict=True)
        if others:
            found |= zip(others, self._train_together([tasks[i] for i in others]), strict=True)
        return [found[place] for place in range(len(tasks))]

    def _train_together(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        self._network.model.train()
        return self._fitting(
            lambda: train_in_blocks(self._problem, tasks, self.width, self._resident, self._run)
        )

    @cached_property
    def _single(self) -> AutogradTrainer:
        return AutogradTrainer(self._problem, self._precision, self._device, tf32=self._tf32)

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Compute the mean loss and metric of each model theta (n,) on its examples, in order."""
        self._network.model.eval()
        rows = evaluation_rows(self._problem)
        return self._fitting(
            lambda: evaluate_in_blocks(
                models, rows, self.width, self._resident, self._evaluate, self._problem.objective
            )
        )

    def _fitting(self, work: Callable[[], _Answer]) -> _Answer:
        """Call ``work`` in the configured precision.

        Raises ``Unsupported`` if the device runs out of memory.
        """
        half = torch.autocast(
            self._device.type,
            torch.bfloat16,
            enabled=self._precision == "bf16",
            cache_enabled=False,  # graphs would keep using tensors that the cache has freed
        )
        try:
            with torch.no_grad(), repeatable(self._device, self._tf32), half:
                return work()
        except torch.OutOfMemoryError as exc:
            raise Unsupported(
                f"{self._device}: {self.width} devices at once do not fit in memory,"
                f' expected trainer.backend = "autograd": {exc}'
            ) from exc

    def _run(self, tasks: Sequence[Task], block: Block) -> Ends:
        first, requests = tasks[0].request, [task.request for task in tasks]
        together = TrainRequest(
            start := self._stacked([one.theta for one in requests]),
            recipe := first.training,
            first.seed,
            self._stacked([one.theta if one.anchor is None else one.anchor for one in requests]),
            correction=self._corrections(requests),
        )
        model, ends = ModelInTraining(self._problem.network.layout, together, torch), Ends(block)
        rates = self._by_step(recipe.rate, block.steps)
        weights = self._by_step(partial(mean_weight, recipe), block.steps).float()
        mean = cast(Theta, torch.zeros_like(cast(Tensor, start))) if recipe.average else None
        for step in range(len(block.rows)):
            with self._device:
                given = (*block.batch(step), *self._noise(requests, step))
                outputs = self._gradients(cast(Tensor, model.theta), *given)
                found = Differentiated(*cast(list[Any], outputs))
                losses = found.loss.clone()  # a graph's next run overwrites found.loss
                gradient: Theta | None = None
                if first.gradient and block.ending(step):
                    gradient = 1 * found.gradient
                    model.clear(gradient)
                model.advance(found, cast(Rate, rates[step]))
                if mean is not None:
                    add_to_mean(mean, model.theta, weights[step])
            wanted = cast(tuple[Tensor | None, Tensor | None], (gradient, mean))
            ends.add(cast(Tensor, model.theta), losses, *wanted)
        return ends

    def _each_gradient(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Compute ``Network.gradient`` per place from thetas (width, n), batches and random numbers."""
        with self._device, forms(self._convolutions):
            found: tuple[Tensor, ...] = vmap(self._network.gradient)(*given)
        return found

    def _each_sum(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Compute ``Network.evaluate`` per place from thetas (width, n) and batches."""
        with self._device, forms(self._convolutions):
            found: tuple[Tensor, ...] = vmap(self._network.evaluate)(*given)
        return found

    def _by_step(self, value: Callable[[int, int], float], counts: Sequence[int]) -> Tensor:
        """Tabulate ``value(step, number of steps)`` for every step and place. Returns (S, width, 1).

        Places whose training has ended keep their last value.
        """
        counts = [*counts, *[counts[0]] * (self.width - len(counts))]
        values = [
            [[value(min(step, count), count)] for count in counts] for step in range(max(counts))
        ]
        return torch.from_numpy(np.array(values)).to(self._device)

    def _noise(self, requests: Sequence[TrainRequest], step: int) -> list[Tensor]:
        """Return a step's random numbers (width, K), 0.5 in empty places; [] if the model uses none."""
        if not (count := self._problem.noise):
            return []
        numbers = np.full((self.width, count), 0.5, np.float32)
        for place, request in enumerate(requests):
            numbers[place] = noise(request.seed, step, count)
        return [torch.from_numpy(numbers).to(self._device)]

    def _stacked(self, vectors: Sequence[Theta]) -> Theta:
        return cast(Theta, stacked_thetas(vectors, self.width, self._device))

    def _corrections(self, requests: Sequence[TrainRequest]) -> Theta | None:
        """Return the corrections (width, n) of the gradients.

        A task without one gets zeros. Returns None if no task has one.
        """
        if all(one.correction is None for one in requests):
            return None
        none = np.zeros(self._problem.network.layout.size, np.float32)
        return self._stacked(
            [none if one.correction is None else one.correction for one in requests]
        )

    def _evaluate(self, thetas: Sequence[Theta], block: Block) -> list[list[float]]:
        values = stacked_thetas(thetas, self.width, self._device)
        sums = torch.zeros(3, self.width, dtype=torch.float64, device=self._device)
        for step in range(len(block.rows)):
            for place, found in enumerate(self._sums(values, *block.batch(step))):
                sums[place] += found
        table: list[list[float]] = sums.t().tolist()
        return table[: len(thetas)]


def _is_single(request: TrainRequest) -> bool:
    """Return True if the task must run alone, because it needs more models than a block stores."""
    kept = request.training.keeps_state or request.guidance is not None
    return request.second is not None or kept


def _in_float32(rows: Rows) -> Rows:
    """Wrap ``rows`` so that it receives outputs in float32 even if they are bf16."""

    def widened(output: Tensor, y: Tensor) -> Tensor:
        return rows(output.float(), y)

    return widened


def _make_batching(norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
    """Make a batch-normalisation module run for many devices at once.

    vmap would run the exporter's operator device by device, because that operator has no batching rule
    (torch 2.13).
    """
    momentum = norm.momentum
    assert momentum is not None  # Network refuses a module without momentum

    def forward(x: Tensor) -> Tensor:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, variance = norm.running_mean.clone(), norm.running_var.clone()
        # Autocast may have made x bf16, but statistics need float32; for other norms, autocast itself
        # switches to it.
        output: Tensor = torch.native_batch_norm(
            x.float(), norm.weight, norm.bias, mean, variance, norm.training, momentum, norm.eps
        )[0].to(x.dtype)
        if norm.training:
            norm.running_mean, norm.running_var = mean, variance
        return output

    vars(norm)["forward"] = forward
