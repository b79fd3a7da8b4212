"""Bitmaps, and masks told by what changed, against plain Python sets."""

import numpy as np
import pytest

from sedge_protocol.codec.bitmaps import (
    bitmap_bytes,
    changed_ranks,
    from_bitmap,
    is_bitmap,
    left_out,
    to_bitmap,
    with_changes,
)
from sedge_protocol.codec.blockwise import BLOCK

SIZES = [1, 7, 8, 9, 300]
# They are gone through a block at a time.
LONG = [BLOCK, BLOCK + 9]


def _random_mask(rng: np.random.Generator, size: int) -> list[int]:
    """Of any density, empty and full included."""
    share = float(rng.choice([0, 0.01, 0.3, 0.5, 0.99, 1]))
    return [int(position) for position in np.flatnonzero(rng.random(size) < share)]


def _bitmap(mask: list[int], size: int) -> bytes:
    return sum(1 << position for position in mask).to_bytes(-(-size // 8), "little")


@pytest.mark.parametrize("size", [*SIZES, *LONG])
def test_bitmaps_have_a_bit_for_each_position(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(20 if size in SIZES else 2):
        mask = _random_mask(rng, size)
        data = to_bitmap(np.array(mask, np.uint32), size)
        assert data == _bitmap(mask, size)
        assert len(data) == bitmap_bytes(size)
        assert is_bitmap(data, size)
        assert from_bitmap(data, size).tolist() == mask
        assert from_bitmap(data, size).dtype == np.uint32
        others = left_out(np.array(mask, np.uint32), size)
        assert others.dtype == np.uint32
        assert sorted([*others.tolist(), *mask]) == list(range(size))


@pytest.mark.parametrize("size", [*SIZES, *LONG])
def test_ranks_count_the_kept_ones_first(size: int) -> None:
    rng = np.random.default_rng(100 + size)
    for _ in range(30 if size in SIZES else 2):
        before, after = _random_mask(rng, size), _random_mask(rng, size)
        if rng.random() < 0.5:  # near each other, as masks of two rounds are
            after = sorted(set(before) ^ {int(rng.integers(size)) for _ in range(3)})
        order = before + sorted(set(range(size)) - set(before))
        changed = set(before) ^ set(after)
        expected = [rank for rank, position in enumerate(order) if position in changed]
        bitmap = _bitmap(before, size)
        ranks = changed_ranks(bitmap, _bitmap(after, size))
        assert ranks.dtype == np.uint32
        assert ranks.tolist() == expected
        found = with_changes(bitmap, ranks, size)
        assert found.dtype == np.uint32
        assert found.tolist() == after
