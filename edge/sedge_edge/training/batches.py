"""Chooses the examples of each batch, in the same way on a device and in the emulator.

Programs have a static batch size B, so the last, partial batch of an epoch is

    pad     completed with row 0 at weight zero: exact, but BatchNorm would count the padding
    fill    completed from the start of this epoch's shuffle, at weight one
    drop    left out

If padding is not safe, ``pad`` becomes ``fill``. With fewer than B examples, ``drop`` would leave nothing
to train on, so it becomes ``fill``, which then repeats examples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.counter_stream import Purpose, stream_key, words
from sedge_protocol.errors import LocalError
from sedge_protocol.wire.training import LastBatch

# Maps (seed, num_examples, epochs) to one permutation (num_examples,) per epoch, or to a part of one.
Permutations: TypeAlias = Callable[[int, int, int], Iterator[NDArray[np.int64]]]


@dataclass(frozen=True)
class Batch:
    """The batch of one step: ``indices`` (B,) of examples, and their ``weights`` (B,).

    ``epoch`` counts from 0.
    """

    epoch: int
    indices: NDArray[np.int64]
    weights: NDArray[np.float32]


def permutations(seed: int, num_examples: int, epochs: int) -> Iterator[NDArray[np.int64]]:
    """Return one shuffle per epoch, the same on every platform (``permutation``)."""
    keys = (stream_key(seed, Purpose.SHUFFLE, epoch) for epoch in range(epochs))
    return (permutation(key, num_examples) for key in keys)


def permutation(key: int, count: int) -> NDArray[np.int64]:
    """Return the numbers 0 to count - 1 in random order, (count,).

    Each number gets a random 32-bit sort key, drawn with ``key``; the order is ascending by sort key. If
    two sort keys are equal, the lower number comes first. This is rule T6 of protocol/spec/training.md.
    """
    drawn = words(key, -(-count // 2))
    # Split each 32-bit sort key into two halves, the lower one first.
    halves = drawn.view("<u2")[: 2 * count].reshape(count, 2)
    # Sort in two passes over 16 bits each, for which numpy takes linear time.
    return np.lexsort(halves.T).astype(np.int64, copy=False)


def batches(
    num_examples: int,
    batch_size: int,
    epochs: int,
    last_batch: LastBatch,
    seed: int,
    padding_is_safe: bool,
    shuffles: Permutations = permutations,
) -> Iterator[Batch]:
    """Yield the batches of a training phase, reshuffled for each epoch.

    ``shuffles`` returns the permutations. The emulator passes another function to reproduce published runs.
    """
    _require_examples(num_examples)
    if last_batch == "pad" and not padding_is_safe:
        last_batch = "fill"
    if last_batch == "drop" and num_examples < batch_size:
        last_batch = "fill"
    whole = np.ones(batch_size, np.float32)
    for epoch, order in enumerate(shuffles(seed, num_examples, epochs)):  # (num_examples,)
        for start in range(0, len(order), batch_size):
            if start + batch_size <= len(order):
                yield Batch(epoch, order[start : start + batch_size], whole)
            elif last_batch == "pad":
                yield _padded(epoch, order[start:], batch_size)
            elif last_batch == "fill":
                places = np.arange(start, start + batch_size)
                filled = order.take(places, mode="wrap")
                yield Batch(epoch, filled, whole)


def step_count(num_examples: int, batch_size: int, epochs: int, last_batch: LastBatch) -> int:
    """Return the number of batches in a training phase of whole epochs."""
    whole, rest = divmod(num_examples, batch_size)
    dropped = last_batch == "drop" and whole > 0
    return epochs * (whole + (rest > 0 and not dropped))


def evaluation_batches(num_examples: int, batch_size: int) -> Iterator[Batch]:
    """Yield batches that contain each example once, in order.

    Padding the last one does not affect evaluation.
    """
    _require_examples(num_examples)
    for start in range(0, num_examples, batch_size):
        rows = np.arange(start, min(start + batch_size, num_examples), dtype=np.int64)
        yield _padded(0, rows, batch_size)


def _padded(epoch: int, rows: NDArray[np.int64], batch_size: int) -> Batch:
    indices = np.zeros(batch_size, np.int64)
    weights = np.zeros(batch_size, np.float32)
    indices[: len(rows)] = rows
    weights[: len(rows)] = 1.0
    return Batch(epoch, indices, weights)


def _require_examples(num_examples: int) -> None:
    if num_examples < 1:  # cannot happen, because fitting refuses an empty set
        raise LocalError(f"{num_examples} examples cannot form a batch")
