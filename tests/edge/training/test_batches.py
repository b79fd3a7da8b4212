"""Batches: every example of an epoch as often as it should be, whatever the last batch."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_edge.training.batches import Batch, batches, evaluation_batches, permutations, step_count
from sedge_protocol.errors import LocalError
from sedge_protocol.wire.training import LastBatch

MODES: list[LastBatch] = ["pad", "fill", "drop"]


def counts(epoch: list[Batch], num_examples: int) -> list[float]:
    """How often each example weighs in."""
    found = np.zeros(num_examples)
    for batch in epoch:
        np.add.at(found, batch.indices, batch.weights)
    return found.tolist()


def by_epoch(found: list[Batch], epochs: int) -> list[list[Batch]]:
    return [[batch for batch in found if batch.epoch == epoch] for epoch in range(epochs)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_examples", [1, 3, 8, 11])
@pytest.mark.parametrize("safe", [True, False])
def test_every_epoch_covers_the_examples(mode: LastBatch, num_examples: int, safe: bool) -> None:
    size, epochs = 4, 3
    found = list(batches(num_examples, size, epochs, mode, 9, safe))
    assert len(found) == step_count(num_examples, size, epochs, mode)
    for batch in found:
        assert batch.indices.shape == batch.weights.shape == (size,)
        assert batch.indices.dtype == np.int64
        assert batch.weights.dtype == np.float32
        assert batch.indices.min() >= 0
        assert batch.indices.max() < num_examples
        assert batch.weights.sum() > 0
        assert safe or batch.weights.all(), "padding where it is not safe"
    partial = num_examples % size
    for epoch in by_epoch(found, epochs):
        weights = counts(epoch, num_examples)
        if mode == "pad" and safe:
            assert weights == [1.0] * num_examples
        elif mode == "drop" and num_examples >= size:
            assert sorted(weights) == [0.0] * partial + [1.0] * (num_examples - partial)
        else:
            assert min(weights) == max(1, size // num_examples)
            assert max(weights) - min(weights) <= 1.0
            assert sum(weights) == size * -(-num_examples // size)


def test_fill_takes_from_the_start_of_the_same_shuffle() -> None:
    *whole, last = batches(10, 4, 1, "fill", 3, True)
    shuffled = np.concatenate([*(batch.indices for batch in whole), last.indices[:2]])
    assert sorted(shuffled.tolist()) == list(range(10))
    np.testing.assert_array_equal(last.indices[2:], shuffled[:2])


def test_every_order_of_few_rows_is_as_likely() -> None:
    drawn = Counter(tuple(p) for seed in range(600) for p in permutations(seed, 4, 20))
    expected = 600 * 20 / 24
    assert len(drawn) == 24
    assert (
        sum((count - expected) ** 2 / expected for count in drawn.values()) < 50
    )  # chi², 23 degrees


def test_of_many_rows_each_goes_anywhere() -> None:
    """No row's place depends on where it was, on the epoch before, or on the seed beside it."""
    orders = [*permutations(7, 60_000, 2), *permutations(8, 60_000, 1)]
    correlations = np.asarray(np.corrcoef([np.arange(60_000), *orders]))
    found = np.abs(correlations[np.triu_indices(4, 1)])
    assert found.max() < 0.02


def test_somebody_elses_shuffles() -> None:
    asked: list[tuple[int, int, int]] = []

    def shuffles(seed: int, num_examples: int, epochs: int) -> Iterator[NDArray[np.int64]]:
        asked.append((seed, num_examples, epochs))
        for epoch in range(epochs):
            yield np.roll(np.arange(num_examples), epoch)

    found = [b.indices.tolist() for b in batches(4, 2, 2, "pad", 5, True, shuffles)]
    assert found == [[0, 1], [2, 3], [3, 0], [1, 2]]
    assert asked == [(5, 4, 2)]
    np.testing.assert_array_equal(
        [b.indices for b in batches(6, 6, 2, "pad", 5, True)], list(permutations(5, 6, 2))
    )


@pytest.mark.parametrize("num_examples", [1, 4, 7])
def test_evaluation_sees_every_example_once_in_order(num_examples: int) -> None:
    found = list(evaluation_batches(num_examples, 4))
    assert counts(found, num_examples) == [1.0] * num_examples
    rows = np.concatenate([batch.indices[batch.weights > 0] for batch in found])
    assert rows.tolist() == list(range(num_examples))


def test_no_examples_are_our_bug() -> None:
    with pytest.raises(LocalError):
        next(batches(0, 4, 1, "pad", 0, True))
    with pytest.raises(LocalError):
        next(evaluation_batches(0, 4))
