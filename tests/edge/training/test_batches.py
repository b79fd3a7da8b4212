"""Batches from somebody else's shuffles, and of no examples; spec.json has those of every last batch."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_edge.training.batches import batches, evaluation_batches, permutations, step_count
from sedge_protocol.errors import LocalError
from sedge_protocol.wire.training import LastBatch


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


@pytest.mark.parametrize("last_batch", ["pad", "fill", "drop"])
@pytest.mark.parametrize("num_examples", [1, 3, 4, 5, 7, 8, 9])
def test_the_steps_are_counted_as_they_are_made(num_examples: int, last_batch: LastBatch) -> None:
    made = len(list(batches(num_examples, 4, 3, last_batch, 5, True)))
    assert step_count(num_examples, 4, 3, last_batch) == made


def test_no_examples_are_our_bug() -> None:
    with pytest.raises(LocalError):
        next(batches(0, 4, 1, "pad", 0, True))
    with pytest.raises(LocalError):
        next(evaluation_batches(0, 4))
