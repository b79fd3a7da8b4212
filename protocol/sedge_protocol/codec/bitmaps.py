"""Represents masks as packed bitmaps, or as changes to an earlier mask.

A bitmap of n bits has ceil(n/8) bytes; bit i of byte j stands for position 8j + i, and the bits past n are
0. If the coordinator's orders select the elements, a device's mask changes little from round to round. The
changes then take fewer bytes than the mask, and none at all for a patch with exactly the elements of the
earlier mask. A change is identified by its rank in the order of the earlier mask, which lists the positions
that it kept, followed by the positions that it left out, both ascending. Dropped positions have low ranks,
close together; added ones have high ranks, far apart. So the gaps in each half have about the same size.
"""

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.codec.blockwise import blocks, blocks_with
from sedge_protocol.errors import CodecError

Positions = NDArray[np.uint32]
Bits = NDArray[np.uint8]
Kept = NDArray[np.bool_]

# The number of ones in each possible byte value.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)
_BIT = (1 << np.arange(8)).astype(np.uint8)
_FROM = ~(_BIT - 1)  # _FROM[i] masks bit i of a byte and the bits above it.


def bitmap_bytes(size: int) -> int:
    """Return the length of a bitmap of n = ``size`` bits."""
    return -(-size // 8)


def is_bitmap(data: bytes | memoryview, size: int) -> bool:
    """Return True if ``data`` is a bitmap of n = ``size`` bits."""
    return len(data) == bitmap_bytes(size) and not (size % 8 and data[-1] >> size % 8)


def to_bitmap(positions: Positions, size: int) -> bytes:
    """Return the bitmap of n = ``size`` bits with ones at the sorted ``positions``."""
    parts: list[bytes] = []
    for block, inside in blocks_with(positions, size):
        kept = _marked(positions[inside], block)
        parts.append(np.packbits(kept, bitorder="little").tobytes())
    return b"".join(parts)


def from_bitmap(data: bytes, size: int) -> Positions:
    """Return the positions of the ones, ascending.

    Raises ``CodecError`` unless ``data`` is a bitmap of n = ``size`` bits.
    """
    if not is_bitmap(data, size):
        raise CodecError(f"mask: {len(data)} bytes do not match a bitmap of n={size}")
    return _ones(np.frombuffer(data, np.uint8))


def left_out(positions: Positions, size: int) -> Positions:
    """Return the positions below n = ``size`` that are not among the sorted ``positions``."""
    others, done = np.empty(size - positions.size, np.uint32), 0
    for block, inside in blocks_with(positions, size):
        done = _append(others, done, ~_marked(positions[inside], block), block)
    return others


def changed_ranks(before: bytes, after: bytes) -> Positions:
    """Return the ranks, ascending, at which bitmap ``after`` differs from bitmap ``before``."""
    old = np.frombuffer(before, np.uint8)
    changed = _ones(old ^ np.frombuffer(after, np.uint8))
    byte, bit = changed >> 3, changed & 7
    around = old[byte]
    kept_before = np.cumsum(_ONES[old], dtype=np.intp)  # counts up to and including each byte
    ones = kept_before[-1]
    # For each changed position, the number of positions before it that the earlier mask kept.
    rank = kept_before[byte] - _ONES[around & _FROM[bit]]
    dropped = (around & _BIT[bit]).astype(np.bool_)
    added = ~dropped
    return np.concatenate([rank[dropped], ones + changed[added] - rank[added]]).astype(np.uint32)


def with_changes(before: bytes, ranks: Positions, size: int) -> Positions:
    """Flip the positions at ``ranks`` of the mask ``before`` and return the kept positions, ascending.

    ``ranks`` are ascending and below n = ``size``.
    """
    old = np.frombuffer(before, np.uint8)
    ones = int(_ONES[old].sum(dtype=np.intp))
    dropped, added = np.split(ranks, [np.searchsorted(ranks, np.uint32(ones))])
    positions, done = np.empty(ones - dropped.size + added.size, np.uint32), 0
    ones_before, zeros_before = 0, 0  # counts in all earlier blocks
    for block in blocks(size):
        kept = _bits(old, block)
        places = np.flatnonzero(kept), np.flatnonzero(~kept)
        off = _taken(dropped, ones_before, places[0].size)
        on = _taken(added, ones + zeros_before, places[1].size)
        kept[places[0][off]], kept[places[1][on]] = False, True
        done = _append(positions, done, kept, block)
        ones_before, zeros_before = ones_before + places[0].size, zeros_before + places[1].size
    return positions


def _taken(ranks: Positions, first: int, count: int) -> NDArray[np.intp]:
    """Return the sorted ``ranks`` in [first, first + count), as offsets from ``first``."""
    low, high = np.searchsorted(ranks, np.array((first, first + count), np.uint32))
    return ranks[low:high].astype(np.intp) - first


def _marked(positions: Positions, block: slice) -> Kept:
    """Return the mask of a block that keeps ``positions``, all of which are in the block."""
    kept = np.zeros(block.stop - block.start, np.bool_)
    kept[np.subtract(positions, block.start, dtype=np.intp)] = True
    return kept


def _bits(bitmap: Bits, block: slice) -> Kept:
    """Return which elements of a block a bitmap keeps."""
    data = bitmap[block.start // 8 : -(-block.stop // 8)]
    count = block.stop - block.start
    return np.unpackbits(data, count=count, bitorder="little").view(np.bool_)


def _append(positions: Positions, done: int, kept: Kept, block: slice) -> int:
    """Append a block's kept positions to the ``done`` positions written so far. Returns the new count."""
    ones = np.flatnonzero(kept)
    np.add(ones, block.start, out=positions[done : done + ones.size], casting="unsafe")
    return done + ones.size


def _ones(bitmap: Bits) -> Positions:
    positions, done = np.empty(_ONES[bitmap].sum(dtype=np.intp), np.uint32), 0
    for block in blocks(8 * bitmap.size):
        done = _append(positions, done, _bits(bitmap, block), block)
    return positions
