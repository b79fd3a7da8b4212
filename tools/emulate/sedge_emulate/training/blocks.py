"""Many trainings side by side: the same step of each, in tensors of one fixed shape.

Devices are sorted by their number of steps, so that those of a block end together. Unused places of a block
have weight zero. A device's results are read after its own last step; later steps of its place are ignored.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeAlias, TypeVar, cast
from weakref import ref

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sedge_edge.backends.rows import Objective
from sedge_edge.training.batches import Batch, evaluation_batches
from sedge_edge.training.examples import Examples
from sedge_edge.training.loop import Losses
from sedge_edge.training.trainer import Trained, TrainingDiverged, evaluation
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import Task, each
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Metrics

_Item = TypeVar("_Item")


class Resident:
    """Examples on the training device. Each array is copied there once and stays as long as it lives."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: dict[int, tuple[ref[NDArray[np.generic]], Tensor]] = {}

    def gather(self, arrays: Sequence[NDArray[np.generic]]) -> Tensor:
        """All rows of all arrays, one after the other."""
        if self._device.type == "cpu":
            return torch.from_numpy(np.concatenate(arrays))
        return torch.cat([self._copy(array) for array in arrays])

    def batches(
        self, examples: Examples, rows: Sequence[NDArray[np.int64]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """x and y (B, ...) of each batch's rows (B,)."""
        x, y = examples.inputs, examples.targets
        if self._device.type == "cpu":
            for chosen in rows:
                yield torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen])
            return
        places = torch.from_numpy(np.concatenate(rows)).to(self._device)
        for place in torch.split(places, [len(chosen) for chosen in rows]):
            yield self._copy(x).index_select(0, place), self._copy(y).index_select(0, place)

    def _copy(self, array: NDArray[np.generic]) -> Tensor:
        key = id(array)
        if key not in self._copies:
            gone = ref(array, lambda _: self._copies.pop(key, None))
            self._copies[key] = gone, torch.from_numpy(array.copy()).to(self._device)
        return self._copies[key][1]


@dataclass(frozen=True)
class Block:
    """D places with B rows in each of S steps: rows of the data, and their weights.

    ``x`` and ``y`` (N, ...) hold all devices' examples; ``rows`` (S, D, B) point into them;
    ``weights`` (S, D, B) are 0 for padding; ``steps`` (d,) counts each device's, d at most D.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    weights: Tensor
    steps: tuple[int, ...]

    @classmethod
    def of(
        cls, parts: Sequence[tuple[Examples, Sequence[Batch]]], width: int, resident: Resident
    ) -> "Block":
        """The batches of at most ``width`` devices."""
        steps = tuple(len(found) for _, found in parts)
        batch_size = len(parts[0][1][0].indices)
        rows = np.zeros((max(steps), width, batch_size), np.int64)
        weights = np.zeros((max(steps), width, batch_size), np.float32)
        starts, count = dict[int, int](), 0
        once: list[Examples] = []  # several devices may be tested on the same examples
        for place, (examples, found) in enumerate(parts):
            if id(examples) not in starts:
                starts[id(examples)], count = count, count + len(examples.targets)
                once.append(examples)
            for step, batch in enumerate(found):
                rows[step, place] = starts[id(examples)] + batch.indices
                weights[step, place] = batch.weights
        x = resident.gather([examples.inputs for examples in once])
        y = resident.gather([examples.targets for examples in once])
        on = x.device
        return cls(x, y, torch.from_numpy(rows).to(on), torch.from_numpy(weights).to(on), steps)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """x and y (D, B, ...) and weights (D, B) of a step."""
        rows = self.rows[step]
        chosen = rows.flatten()
        x, y = (
            values.index_select(0, chosen).view(*rows.shape, *values.shape[1:])
            for values in (self.x, self.y)
        )
        return x, y, self.weights[step]

    def ending(self, step: int) -> list[int]:
        """The places of the devices whose last step this is."""
        return [place for place, steps in enumerate(self.steps) if steps == step + 1]


def stacked_thetas(thetas: Sequence[Theta], width: int, device: torch.device) -> Tensor:
    """(width, n); empty places hold the first theta, so their numbers stay finite."""
    filled = [*thetas, *[thetas[0]] * (width - len(thetas))]
    return torch.from_numpy(np.stack(filled)).to(device)


# Theta (n,), the loss of every step, and the gradient and the mean of the models (n,) if wanted.
End: TypeAlias = tuple[Theta, list[float], Theta | None, Theta | None]


class Ends:
    """The results of a block's devices, each taken after its own last step.

    They stay on the training device until ``read``: a step that copied them would wait for it.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._losses: list[Tensor] = []
        self._thetas: Tensor | None = None
        self._gradients: Tensor | None = None
        self._means: Tensor | None = None

    def add(
        self, values: Tensor, losses: Tensor, gradients: Tensor | None, means: Tensor | None
    ) -> None:
        """A step: values (D, n) after it, its losses (D,), and gradients and means (D, n) if wanted."""
        places = self._block.ending(len(self._losses))
        self._losses.append(losses)
        self._thetas = _kept(self._thetas, values, places)
        if gradients is not None:
            self._gradients = _kept(self._gradients, gradients, places)
        if means is not None:
            self._means = _kept(self._means, means, places)

    def read(self) -> list[End]:
        """The end of each device, in order."""
        table = torch.stack(self._losses).t().tolist()  # (D, S)
        thetas, gradients = _read(self._thetas), _read(self._gradients)
        means = _read(self._means)
        return [
            (
                cast(Theta, thetas)[place].copy(),
                table[place][:steps],
                None if gradients is None else gradients[place].copy(),
                None if means is None else means[place].copy(),
            )
            for place, steps in enumerate(self._block.steps)
        ]


def _kept(kept: Tensor | None, values: Tensor, places: Sequence[int]) -> Tensor | None:
    """The kept values (D, n), updated with the values (D, n) of some places."""
    if kept is None and places:
        kept = torch.empty_like(values)
    for place in places:
        cast(Tensor, kept)[place] = values[place]
    return kept


def _read(kept: Tensor | None) -> Theta | None:
    return None if kept is None else kept.cpu().numpy()


# Trains one block of tasks, which differ only in theta, anchor and examples.
RunBlock = Callable[[Sequence[Task], Block], Ends]
# The properties that tasks of a block share: how they train, and whether they want a gradient.
_Kind: TypeAlias = tuple[bytes, bool]


def train_in_blocks(
    problem: Problem, tasks: Sequence[Task], width: int, resident: Resident, run: RunBlock
) -> list[Trained | TrainingDiverged]:
    """The end of each training, in order."""
    batches = [list(problem.batches(task)) for task in tasks]

    def kind(place: int) -> _Kind:
        request = tasks[place].request
        return msgspec.msgpack.encode(request.training), request.gradient

    def order(place: int) -> tuple[_Kind, int]:
        return kind(place), -len(batches[place])

    found: dict[int, Trained | TrainingDiverged] = {}
    for _, group in groupby(sorted(range(len(tasks)), key=order), kind):
        for places in _cut(list(group), width):
            parts = [(tasks[place].examples, batches[place]) for place in places]
            block = Block.of(parts, width, resident)
            ends = run([tasks[place] for place in places], block)
            for place, end in zip(places, ends.read(), strict=True):
                epochs = tasks[place].request.training.local_epochs
                (found[place],) = each(partial(_trained, epochs, batches[place]), [end])
    return [found[place] for place in range(len(tasks))]


def _trained(epochs: int, batches: Sequence[Batch], end: End) -> Trained:
    """The end of a device's training. Raises ``TrainingDiverged``."""
    theta, values, gradient, mean = end
    losses = Losses(epochs)
    for batch, loss in zip(batches, values, strict=True):
        losses.begin(batch)
        losses.add([loss])
    losses.check(theta)
    return Trained(theta, losses.mean, len(values), gradient, mean=mean)


# Evaluates one block: thetas, the block -> for each device the sums of losses, metric and weights.
EvaluateBlock = Callable[[Sequence[Theta], Block], list[list[float]]]


def evaluate_in_blocks(
    models: Sequence[tuple[Theta, Examples]],
    rows: int,
    width: int,
    resident: Resident,
    run: EvaluateBlock,
    objective: Objective,
) -> list[Metrics | TrainingDiverged]:
    """Mean loss and metric of each theta (n,), in order; ``rows`` is an evaluation's batch size."""
    counts = [len(examples.targets) for _, examples in models]
    found: dict[int, Metrics | TrainingDiverged] = {}
    for places in _cut(sorted(range(len(models)), key=lambda place: -counts[place]), width):
        parts = [
            (models[place][1], list(evaluation_batches(counts[place], rows))) for place in places
        ]
        sums = run([models[place][0] for place in places], Block.of(parts, width, resident))
        for place, one in zip(places, sums, strict=True):
            given = one, counts[place], objective.reported
            (found[place],) = each(lambda given: evaluation(*given), [given])
    return [found[place] for place in range(len(models))]


def _cut(places: list[_Item], width: int) -> list[list[_Item]]:
    return [places[start : start + width] for start in range(0, len(places), width)]
