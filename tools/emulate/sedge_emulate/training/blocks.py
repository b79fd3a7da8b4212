"""Trains many devices side by side: the same step for each, in tensors of one fixed shape.

Devices are sorted by their number of steps, so that the devices in one block end at about the same time.
Unused places in a block have weight zero. A device's results are taken after its own last step, and later
steps at its place are ignored.
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
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Task, each
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Metrics

_Item = TypeVar("_Item")


class Resident:
    """Keeps examples on the training device.

    Each array is copied there once, and freed with the original.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: dict[int, tuple[ref[NDArray[np.generic]], Tensor]] = {}

    def gather(self, arrays: Sequence[NDArray[np.generic]]) -> Tensor:
        """Concatenate the arrays along their rows, on the device."""
        if self._device.type == "cpu":
            return torch.from_numpy(np.concatenate(arrays))
        return torch.cat([self._copy(array) for array in arrays])

    def batches(
        self, examples: Examples, rows: Sequence[NDArray[np.int64]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each batch's inputs and targets (B, ...), given its ``rows`` (B,)."""
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
    """The batches of up to D devices: S steps of B examples for each of D places.

    ``x`` and ``y`` (N, ...) hold the examples of all devices; ``rows`` (S, D, B) are indices into them, and
    ``weights`` (S, D, B) are 0 for padding. ``steps`` (d,) has the number of steps of each of the d <= D
    devices.
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
        """Combine the batches of at most ``width`` devices into one block."""
        steps = tuple(len(found) for _, found in parts)
        batch_size = len(parts[0][1][0].indices)
        rows = np.zeros((max(steps), width, batch_size), np.int64)
        weights = np.zeros((max(steps), width, batch_size), np.float32)
        starts, count = dict[int, int](), 0
        once: list[Examples] = []  # without duplicates: devices may share test examples
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
        """Return the inputs and targets (D, B, ...) and the weights (D, B) of one step."""
        rows = self.rows[step]
        chosen = rows.flatten()
        x, y = (
            values.index_select(0, chosen).view(*rows.shape, *values.shape[1:])
            for values in (self.x, self.y)
        )
        return x, y, self.weights[step]

    def ending(self, step: int) -> list[int]:
        """Return the places of the devices whose last step is ``step``."""
        return [place for place, steps in enumerate(self.steps) if steps == step + 1]


def stacked_thetas(thetas: Sequence[Theta], width: int, device: torch.device) -> Tensor:
    """Stack thetas (n,) to (width, n). Empty places repeat the first theta, so their values stay finite."""
    filled = [*thetas, *[thetas[0]] * (width - len(thetas))]
    return torch.from_numpy(np.stack(filled)).to(device)


# A device's final theta (n,), the loss of every step, a gradient (n,) if it is requested, and the mean (n,)
# of the models if that is requested.
End: TypeAlias = tuple[Theta, list[float], Theta | None, Theta | None]


class Ends:
    """Collects the results of a block's devices, each after its own last step.

    The results stay on the training device until ``read``: copying them to the host after a step would
    stall the device.
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
        """Add a step: its models (D, n) and losses (D,), and optional gradients and means (D, n)."""
        places = self._block.ending(len(self._losses))
        self._losses.append(losses)
        self._thetas = _kept(self._thetas, values, places)
        if gradients is not None:
            self._gradients = _kept(self._gradients, gradients, places)
        if means is not None:
            self._means = _kept(self._means, means, places)

    def read(self) -> list[End]:
        """Copy the devices' results to the host, in order."""
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
    """Copy the rows ``places`` of ``values`` (D, n) to ``kept`` (D, n), allocating it on first use."""
    if kept is None and places:
        kept = torch.empty_like(values)
    for place in places:
        cast(Tensor, kept)[place] = values[place]
    return kept


def _read(kept: Tensor | None) -> Theta | None:
    return None if kept is None else kept.cpu().numpy()


# Trains one block of tasks of the same kind, which differ only in their vectors, seeds and examples.
RunBlock = Callable[[Sequence[Task], Block], Ends]
# What all tasks in a block have in common: the training settings, and whether a gradient is requested.
_Kind: TypeAlias = tuple[bytes, bool]


def train_in_blocks(
    problem: TrainingProblem, tasks: Sequence[Task], width: int, resident: Resident, run: RunBlock
) -> list[Trained | TrainingDiverged]:
    """Train the tasks in blocks of up to ``width``. Returns their results in the same order."""
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
    """Convert a device's raw results to a ``Trained``.

    Raises ``TrainingDiverged`` if a loss or theta is not finite.
    """
    theta, values, gradient, mean = end
    losses = Losses(epochs)
    for batch, loss in zip(batches, values, strict=True):
        losses.begin(batch)
        losses.add([loss])
    losses.check(theta)
    return Trained(theta, losses.mean, len(values), gradient, mean=mean)


# Evaluates each device's theta on its examples in a block. Returns the sums of losses, metric and weights
# for each device.
EvaluateBlock = Callable[[Sequence[Theta], Block], list[list[float]]]


def evaluate_in_blocks(
    models: Sequence[tuple[Theta, Examples]],
    rows: int,
    width: int,
    resident: Resident,
    run: EvaluateBlock,
    objective: Objective,
) -> list[Metrics | TrainingDiverged]:
    """Compute the mean loss and metric of each theta (n,) on its examples, in the order of ``models``.

    ``rows`` is the batch size.
    """
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
