"""Nested personal sets: each is what the quantile of its size would choose, and they only grow."""

from typing import Any

import numpy as np
import pytest

from sedge_cloud.algorithms.prefixes import DEFAULT_SIZES, MAX_SIZE, nested, sizes_of
from sedge_protocol.codec import Compression
from sedge_protocol.codec.patch_levels import encode_levels
from sedge_protocol.errors import ConfigError, LocalError
from sedge_protocol.wire.messages import MAX_INLINE_BYTES


def test_sizes() -> None:
    assert sizes_of(False) == ()
    assert sizes_of(True) == DEFAULT_SIZES == (0, 16, 64, 256, 1024, 4096)
    assert sizes_of((0,)) == (0,)
    assert sizes_of((5, MAX_SIZE)) == (5, MAX_SIZE)


@pytest.mark.parametrize(
    "sizes", [(), (-1, 3), (3, 3), (4, 3), tuple(range(9)), (0, MAX_SIZE + 1)], ids=str
)
def test_sizes_that_cannot_be(sizes: Any) -> None:
    with pytest.raises(ConfigError, match="prefixes"):
        sizes_of(sizes)


def test_the_largest_sizes_levels_fit_into_an_order() -> None:
    levels = np.arange(MAX_SIZE, dtype=np.uint8) % 8
    assert len(encode_levels(levels, Compression.NONE)) <= MAX_INLINE_BYTES


@pytest.mark.parametrize("seed", range(8))
def test_every_part_is_the_highest_scores_without_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, rng.integers(1, 31), rng.integers(1, 61)).tolist()
    sizes = sorted(rng.choice(41, rng.integers(1, 9), replace=False).tolist())
    scores = np.array(numbers, np.float32)
    chosen, levels = nested(scores, tuple(sizes))
    assert chosen.dtype == np.uint32 and levels.dtype == np.uint8
    for level, size in enumerate(sizes):
        ordered = [*sorted(numbers, reverse=True), *[0] * 41]
        wanted = [k for k, score in enumerate(numbers) if score > ordered[size]]
        assert chosen[levels <= level].tolist() == wanted


def test_scores_that_are_no_numbers() -> None:
    with pytest.raises(LocalError, match="index 1 is not finite"):
        nested(np.array([1, np.nan], np.float32), (0, 1))
