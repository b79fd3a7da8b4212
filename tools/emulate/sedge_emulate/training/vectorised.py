"""Many devices at once for any model: torch.func's vmap over stacked thetas, on any torch device.

The traced step is the exporter's own (``sedge_export.network``), so models, momentum, prox and running
statistics are exactly what devices run. vmap turns convolutions into grouped ones and products into bmm.
Data stay on the device, all shapes are fixed, and the number of devices at once halves when memory runs
out. On a CPU this pays for small models only; it is there for GPUs.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from sedge_edge.data import Examples
from sedge_edge.training.step_loop import places
from sedge_edge.training.trainer import Mixed, Trained, TrainingDiverged
from sedge_emulate.training.blocks import (
    Block,
    Ends,
    Resident,
    evaluate_in_blocks,
    stacked_anchors,
    stacked_thetas,
    train_in_blocks,
)
from sedge_emulate.training.memory import keep_memory
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.repeat import repeatable
from sedge_emulate.training.sequential import SequentialTrainer, open_sequential
from sedge_emulate.training.tasks import MixedTask, Precision, Task, Unsupported
from sedge_export.network import Network
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Metrics

# Devices at once to begin with: on a CPU more only spill its cache.
WIDTHS = {"cpu": 8, "cuda": 128}
_Answer = TypeVar("_Answer")


class VectorisedTrainer:
    """``FleetTrainer`` on any torch device."""

    name = "vectorised"

    def __init__(
        self,
        problem: Problem,
        precision: Precision,
        device: torch.device,
        width: int | None = None,
    ) -> None:
        self._problem, self._device = problem, device
        self._precision: Precision = precision
        loss = problem.loss
        self._network = Network(
            problem.module, lambda output, y: loss(output.float(), y), problem.classifies
        )
        self._network.model.to(device)
        # What vmap cannot do for many devices at once it does one after the other, and says so for each
        # operation at each use; whether that pays is measured.
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
        self._resident = Resident(device)
        self.width = width or WIDTHS.get(device.type, WIDTHS["cpu"])
        if device.type == "cpu":
            keep_memory()

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """The end of each training, in order."""
        self._network.model.train()
        return self._fitting(
            lambda: train_in_blocks(self._problem, tasks, self.width, self._resident, self._run)
        )

    def train_mixed(self, tasks: Sequence[MixedTask]) -> list[Mixed | TrainingDiverged]:
        """The end of each training of two models, in order, one after the other."""
        return self._single.train_mixed(tasks)

    @cached_property
    def _single(self) -> SequentialTrainer:
        return open_sequential("sequential", self._problem, self._precision, self._device)

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Mean loss and accuracy of each theta (n,), in order."""
        self._network.model.eval()
        rows = max(self._problem.batch_size, 64)
        return self._fitting(
            lambda: evaluate_in_blocks(models, rows, self.width, self._resident, self._evaluate)
        )

    def _fitting(self, work: Callable[[], _Answer]) -> _Answer:
        """The work's answer; begun again with half the width as often as memory runs out."""
        with torch.no_grad(), repeatable(self._device):
            while True:
                try:
                    with torch.autocast(
                        self._device.type, torch.bfloat16, enabled=self._precision == "bf16"
                    ):
                        return work()
                except torch.OutOfMemoryError as exc:
                    if self.width == 1:
                        raise Unsupported(
                            f"{self._device}: one device does not fit: {exc}"
                        ) from exc
                    self.width //= 2
                torch.cuda.empty_cache()

    def _run(self, tasks: Sequence[Task], block: Block) -> Ends:
        training = tasks[0].training
        frozen = places(self._problem.network.layout, training.freeze)
        values = stacked_thetas([task.theta for task in tasks], self.width, self._device)
        starts = values
        velocity = zeros = torch.zeros_like(values)
        constants = [torch.tensor(training.learning_rate), torch.tensor(training.momentum)]
        one: Callable[..., tuple[Tensor, Tensor, Tensor]] = self._network.train
        anchor: list[Tensor] = []
        if training.prox:
            one = self._network.train_prox
            anchor = [stacked_anchors(tasks, self.width, self._device)]
            constants.append(torch.tensor(training.prox))
        constants = [constant.to(self._device) for constant in constants]
        each = vmap(one, in_dims=(0,) * 5 + (None,) * len(constants) + (0,) * len(anchor))
        gradient: Tensor | None = None
        ends = Ends(block)
        for step in range(len(block.rows)):
            with self._device:
                batch = block.batch(step)
                if tasks[0].gradient and block.ending(step):
                    # Once more, from a velocity of zero and without prox: then it is the velocity.
                    rates = constants[:2] + [torch.zeros_like(rate) for rate in constants[2:]]
                    _, gradient, _ = each(values, zeros, *batch, *rates, *anchor)
                    for place in frozen:
                        gradient[:, place] = 0
                values, velocity, loss = each(values, velocity, *batch, *constants, *anchor)
            for place in frozen:
                values[:, place] = starts[:, place]
            ends.add(values, loss, gradient)
        return ends

    def _evaluate(self, thetas: Sequence[Theta], block: Block) -> list[tuple[float, float]]:
        values = stacked_thetas(thetas, self.width, self._device)
        sums = torch.zeros(2, self.width, dtype=torch.float64, device=self._device)
        each = vmap(self._network.evaluate)
        for step in range(len(block.rows)):
            with self._device:
                loss, correct, _ = each(values, *block.batch(step))
            sums[0] += loss
            sums[1] += correct
        return [(loss, right) for loss, right in sums.t().tolist()][: len(thetas)]
