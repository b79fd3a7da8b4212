"""Masks as packed bitmaps, and a mask told by what changed since an earlier one.

A bitmap of n bits has ceil(n/8) bytes; bit i of byte j stands for position 8j + i, and the bits past n are
0. A device whose orders select the elements keeps much of its mask from round to round, so naming the
changes takes fewer bytes than the mask, and none for a patch of the same elements. They are named by rank
in the order of the earlier mask: first the positions that it kept, then those that it left out, both
ascending. What was dropped lies among the first, dense there; what was added among the second, thin there;
so each half has gaps of its own size.
"""

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError

Positions = NDArray[np.uint32]
Bits = NDArray[np.uint8]

# How many bits of each of the 256 bytes are ones.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)
_BIT = (1 << np.arange(8)).astype(np.uint8)
_FROM = ~(_BIT - 1)  # bit i of a byte and those above it


def bitmap_bytes(size: int) -> int:
    """The length of a bitmap of n = ``size`` bits."""
    return -(-size // 8)


def is_bitmap(data: bytes | memoryview, size: int) -> bool:
    """Whether ``data`` is a bitmap of n = ``size`` bits."""
    return len(data) == bitmap_bytes(size) and not (size % 8 and data[-1] >> size % 8)


def to_bitmap(positions: Positions, size: int) -> bytes:
    """The bitmap of n = ``size`` bits with ones at ``positions``."""
    kept = np.zeros(size, np.bool_)
    kept[positions.astype(np.intp)] = True  # twice as fast as an index of another type
    return np.packbits(kept, bitorder="little").tobytes()


def from_bitmap(data: bytes, size: int) -> Positions:
    """The positions, ascending. Raises ``CodecError`` unless ``data`` is a bitmap of n = ``size``."""
    if not is_bitmap(data, size):
        raise CodecError(f"mask: {len(data)} bytes are not a bitmap of n={size}")
    return _ones(np.frombuffer(data, np.uint8)).astype(np.uint32)


def left_out(positions: Positions, size: int) -> Positions:
    """The positions below n = ``size`` that are not among ``positions``."""
    out = np.ones(size, np.bool_)
    out[positions.astype(np.intp)] = False
    return np.flatnonzero(out).astype(np.uint32)


def changed_ranks(before: bytes, after: bytes) -> Positions:
    """The ranks, ascending, at which bitmap ``after`` differs from bitmap ``before``."""
    old = np.frombuffer(before, np.uint8)
    changed = _ones(old ^ np.frombuffer(after, np.uint8))
    byte, bit = changed >> 3, changed & 7
    around = old[byte]
    kept_before = np.cumsum(_ONES[old], dtype=np.intp)  # in each byte and all before it
    ones = kept_before[-1]
    # How many positions before each changed one the earlier mask kept.
    rank = kept_before[byte] - _ONES[around & _FROM[bit]]
    dropped = (around & _BIT[bit]).astype(np.bool_)
    added = ~dropped
    return np.concatenate([rank[dropped], ones + changed[added] - rank[added]]).astype(np.uint32)


def with_changes(before: bytes, ranks: NDArray[np.int64], size: int) -> Positions:
    """The positions, ascending, of ``before`` once those at ``ranks``, ascending and below n, changed."""
    kept = np.unpackbits(np.frombuffer(before, np.uint8), count=size, bitorder="little").view(
        np.bool_
    )
    ones = np.flatnonzero(kept)
    dropped, added = np.split(ranks, [np.searchsorted(ranks, ones.size)])
    added = added - ones.size
    if 4 * ones.size < size:
        # Before a one lie as many zeros as its place less its rank. Listing all zeros would take longer.
        places = added + np.searchsorted(ones - np.arange(ones.size), added, side="right")
    else:
        places = np.flatnonzero(~kept)[added]
    kept[ones[dropped]] = False
    kept[places] = True
    return np.flatnonzero(kept).astype(np.uint32)


def _ones(bitmap: Bits) -> NDArray[np.intp]:
    return np.flatnonzero(np.unpackbits(bitmap, bitorder="little").view(np.bool_))
