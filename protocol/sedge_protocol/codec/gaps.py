"""Encodes sorted positions as the gaps between them, and gaps as varints.

gap[0] is the first position, gap[i] the number of positions between the (i-1)-th and the i-th, so unsorted,
repeated and negative positions cannot be expressed. Varints keep structure that a compressor can use. m is
the number of positions; arrays are (m,). WIRE.md specifies every byte.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.codec.blockwise import BLOCK
from sedge_protocol.errors import CodecError

Positions = NDArray[np.uint32]
Gaps = NDArray[np.uint32]

# A gap is below n <= 2**28: four groups of seven bits hold it.
MAX_VARINT_BYTES = 4


def to_gaps(positions: Positions) -> Gaps:
    """Return the gaps between sorted ``positions``."""
    gaps = positions.copy()
    gaps[1:] -= positions[:-1]
    gaps[1:] -= 1
    return gaps


def from_gaps(gaps: Iterable[NDArray[np.int64]], size: int) -> Positions:
    """Return the positions that ``gaps``, an iterable of blocks, encodes.

    Raises ``CodecError`` unless all positions are below n = ``size``.
    """
    parts, count, last = list[Positions](), 0, -1
    for block in gaps:
        positions = np.cumsum(block + 1) + last  # the gaps of a vector sum to less than 2**57
        if positions.size and positions[-1] >= size:
            first = int(np.searchsorted(positions, size))
            text = f"{positions[first]} is not below n={size}"
            raise CodecError(f"mask.index[{count + first}]: {text}")
        last = int(positions[-1]) if positions.size else last
        parts.append(positions.astype(np.uint32))
        count += positions.size
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def to_varints(gaps: Gaps) -> bytes:
    """Encode each gap in groups of seven bits, lowest first; bit 7 is set in all groups but the last."""
    longer = np.flatnonzero(gaps >= 0x80)
    if not longer.size:
        return gaps.astype(np.uint8).tobytes()
    extra = np.ones(longer.size, np.intp)  # extra groups of each gap, beyond its first
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


def from_varints(data: bytes) -> Iterator[NDArray[np.int64]]:
    """Yield the gaps that the varints in ``data`` encode, in blocks.

    Raises ``CodecError`` unless ``data`` consists of complete varints of minimal length.
    """
    groups, begin, count = np.frombuffer(data, np.uint8), 0, 0
    while begin < groups.size:
        ends = np.flatnonzero(groups[begin : begin + BLOCK] < 0x80)
        if not ends.size:
            limit = f"longer than {MAX_VARINT_BYTES} bytes"
            raise CodecError(f"mask.gap[{count}]: its varint is cut off or {limit}")
        whole = groups[begin : begin + int(ends[-1]) + 1]
        yield _gaps(whole, ends, count)
        begin, count = begin + whole.size, count + ends.size


def _gaps(groups: NDArray[np.uint8], ends: NDArray[np.intp], count: int) -> NDArray[np.int64]:
    """Decode the varints that end at ``ends``.

    ``count`` is the number of gaps before them, for error messages.
    """
    if ends.size == groups.size:
        return groups.astype(np.int64)
    lengths = np.diff(ends, prepend=-1)
    longer = np.flatnonzero(lengths > 1)
    longest = int(lengths.max())
    if longest > MAX_VARINT_BYTES:
        first = int(np.argmax(lengths > MAX_VARINT_BYTES))
        raise CodecError(
            f"mask.gap[{count + first}]: {lengths[first]} bytes, the limit is {MAX_VARINT_BYTES}"
        )
    padded = groups[ends[longer]] == 0
    if padded.any():
        first = int(longer[np.argmax(padded)])
        raise CodecError(f"mask.gap[{count + first}]: not the shortest varint")
    starts = ends - lengths + 1
    gaps = (groups[starts] & 0x7F).astype(np.int64)
    for group in range(1, longest):
        reached = longer[lengths[longer] > group]
        gaps[reached] |= (groups[starts[reached] + group] & 0x7F).astype(np.int64) << 7 * group
    return gaps
