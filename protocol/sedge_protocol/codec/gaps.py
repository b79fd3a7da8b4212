"""Sorted positions as the gaps between them, and gaps as varints.

gap[0] is the first position, gap[i] what lies between position i-1 and position i, so unsorted, repeated
and negative positions cannot be written. Varints leave their structure to a compressor.

m = number of positions; arrays are (m,). Byte for byte: WIRE.md.
"""

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError

Positions = NDArray[np.uint32]
Gaps = NDArray[np.uint32]

# A gap is below n <= 2**28: four groups of seven bits hold it.
MAX_VARINT_BYTES = 4


def to_gaps(positions: Positions) -> Gaps:
    """The gaps of sorted ``positions``."""
    gaps = positions.copy()
    gaps[1:] -= positions[:-1]
    gaps[1:] -= 1
    return gaps


def from_gaps(gaps: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The positions of ``gaps``. Raises ``CodecError`` unless they lie below ``size``."""
    positions = np.cumsum(gaps + 1) - 1  # (m,): the gaps sum to less than 2**57
    if positions.size and positions[-1] >= size:
        first = int(np.searchsorted(positions, size))
        raise CodecError(f"mask.index[{first}]: {positions[first]} is not below n={size}")
    return positions


def to_varints(gaps: Gaps) -> bytes:
    """Each gap in groups of seven bits, the lowest first, bit 7 set in all but the last."""
    longer = np.flatnonzero(gaps >= 0x80)
    if not longer.size:
        return gaps.astype(np.uint8).tobytes()
    extra = np.ones(longer.size, np.intp)  # groups beyond the first
    for group in range(2, MAX_VARINT_BYTES):
        extra += gaps[longer] >= 1 << 7 * group
    starts = np.ones(gaps.size, np.intp)
    starts[longer] += extra
    starts = np.cumsum(starts) - starts
    data = np.empty(gaps.size + int(extra.sum()), np.uint8)
    data[starts] = gaps & 0x7F
    data[starts[longer]] |= 0x80
    for group in range(1, int(extra.max()) + 1):
        reached = longer[extra >= group]
        more = (extra[extra >= group] > group).astype(np.uint32) << 7
        data[starts[reached] + group] = gaps[reached] >> 7 * group & 0x7F | more
    return data.tobytes()


def from_varints(data: bytes) -> NDArray[np.int64]:
    """The gaps in ``data``. Raises ``CodecError`` unless it is whole, shortest varints to its end."""
    groups = np.frombuffer(data, np.uint8)
    more = groups >= 0x80
    if not more.any():
        return groups.astype(np.int64)
    if more[-1]:
        raise CodecError("mask: the last varint is cut off")
    ends = np.flatnonzero(~more)
    lengths = np.diff(ends, prepend=-1)
    longer = np.flatnonzero(lengths > 1)
    longest = int(lengths.max())
    if longest > MAX_VARINT_BYTES:
        first = int(np.argmax(lengths > MAX_VARINT_BYTES))
        raise CodecError(
            f"mask.gap[{first}]: {lengths[first]} bytes, the limit is {MAX_VARINT_BYTES}"
        )
    padded = groups[ends[longer]] == 0
    if padded.any():
        raise CodecError(f"mask.gap[{longer[np.argmax(padded)]}]: not the shortest varint")
    starts = ends - lengths + 1
    gaps = (groups[starts] & 0x7F).astype(np.int64)
    for group in range(1, longest):
        reached = longer[lengths[longer] > group]
        gaps[reached] |= (groups[starts[reached] + group] & 0x7F).astype(np.int64) << 7 * group
    return gaps
