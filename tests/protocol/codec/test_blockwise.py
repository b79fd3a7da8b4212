"""Blocks cover a vector once, and each position is in the block where it lies."""

import numpy as np
import pytest

from sedge_protocol.codec.blockwise import BLOCK, blocks, blocks_with

SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]


@pytest.mark.parametrize("size", SIZES)
def test_blocks_cover_every_element_once(size: int) -> None:
    found = [place for block in blocks(size) for place in range(size)[block]]
    assert found == list(range(size))
    assert all(block.stop - block.start <= BLOCK for block in blocks(size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [1, 5, BLOCK])
def test_positions_are_in_their_block(size: int, step: int) -> None:
    positions = np.arange(0, size, step, dtype=np.uint32)
    found = [
        place
        for block, inside in blocks_with(positions, size)
        for place in positions[inside].tolist()
        if block.start <= place < block.stop
    ]
    assert found == positions.tolist()
