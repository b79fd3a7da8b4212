"""Processes long vectors in blocks, so that no intermediate result is as long as the vector.

A block and its intermediate results fit into the CPU's cache, which also makes most passes faster. n is
the number of elements in the vector, k the number of positions.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# A multiple of 8, so that the blocks of a bitmap are whole bytes.
BLOCK = 1 << 16


def blocks(size: int) -> Iterator[slice]:
    """Yield every block of a vector of ``size`` elements, in order."""
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def blocks_with(positions: NDArray[np.uint32], size: int) -> Iterator[tuple[slice, slice]]:
    """Yield every block of n = ``size`` elements, and which of the sorted ``positions`` (k,) are in it."""
    # The edges have the positions' own type; otherwise numpy would copy all positions into a wider type.
    edges = np.arange(0, size + BLOCK, BLOCK, dtype=np.uint32)
    ends = np.searchsorted(positions, edges).tolist()
    return zip(blocks(size), (slice(*span) for span in pairwise(ends)), strict=True)
