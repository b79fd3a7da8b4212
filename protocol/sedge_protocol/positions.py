"""Which of n positions a sparse vector keeps, as few bytes.

Three forms are tried and the smallest is sent: a bitmap, the gaps between positions as varints, and the
same gaps as a Rice code (Golomb 1966, Rice 1979). Bitmap and varints are also tried compressed: real
masks follow the rows of a layer, so both then fall far below n·H(k/n) bits, the entropy of a random
mask. The Rice code holds for random masks, where it stays within 1.05 of that entropy.

Gaps describe the rarer of kept and left-out positions, m = min(k, n - k) of them. Positions are strictly
increasing by construction: gap 0 is the first position, every later gap what lies between two.

Nothing here looks at values or keeps a mask from one call to the next. Byte for byte: WIRE.md.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.compression import Compression, grow, shrink
from sedge_protocol.errors import CodecError

# A gap is below n <= 2**28: four groups of seven bits hold it.
MAX_VARINT_BYTES = 4
MAX_RICE_BITS = 27


class MaskForm(IntEnum):
    """How positions are written; 8 to 15 are kept for forms that build on an earlier mask."""

    EMPTY = 0
    DENSE = 1
    BITMAP = 2
    GAPS = 3
    RICE = 4


def max_mask_bytes(size: int) -> int:
    """The longest mask section for n = ``size``: a plain bitmap, which is always tried."""
    return -(-size // 8)


def encode_positions(
    indices: NDArray[np.uint32], size: int, compression: Compression
) -> tuple[MaskForm, Compression, bytes]:
    """The smallest form of sorted ``indices`` (k,), 0 < k < n = ``size``, and how it is compressed."""
    kept = np.zeros(size, np.bool_)  # (n,)
    kept[indices] = True
    gaps = _gaps(indices if 2 * indices.size <= size else np.flatnonzero(~kept).astype(np.uint32))
    plain = [(MaskForm.BITMAP, np.packbits(kept, bitorder="little").tobytes())]
    # A varint takes a byte or more. Where they alone outweigh the bitmap they lose compressed too:
    # .71 to .99 of n·H against .48 to .68 for real masks with half of the positions kept.
    if 8 * gaps.size <= size:
        plain.append((MaskForm.GAPS, _to_varints(gaps)))
    found = [(form, Compression.NONE, data) for form, data in plain]
    if compression is not Compression.NONE:
        found += [(form, compression, shrink(data, compression)) for form, data in plain]
    best = min(found, key=lambda candidate: len(candidate[2]))
    bits, rice_bytes = _rice_parameter(gaps)
    if rice_bytes < len(best[2]):
        return MaskForm.RICE, Compression.NONE, _to_rice(gaps, bits)
    return best


def decode_positions(
    form: MaskForm, compression: Compression, data: memoryview, size: int, count: int
) -> NDArray[np.uint32]:
    """The ``count`` sorted positions below n = ``size`` that a mask section names, 0 < k < n.

    ``data`` is at most ``max_mask_bytes`` long. Raises ``CodecError`` for a section that is not a mask
    of exactly k of n positions.
    """
    if form is MaskForm.BITMAP:
        return _from_bitmap(grow(data, compression, max_mask_bytes(size)), size, count)
    rarer = min(count, size - count)
    if form is MaskForm.GAPS:
        gaps = _from_varints(grow(data, compression, MAX_VARINT_BYTES * rarer), rarer)
    elif form is MaskForm.RICE and compression is Compression.NONE:
        gaps = _from_rice(data, rarer)
    else:
        raise CodecError(
            f"mask: form {form.name.lower()} with {compression} for k={count}, n={size}"
        )
    positions = np.cumsum(gaps + 1) - 1  # (m,) int64: the gaps sum to less than 2**57
    if positions[-1] >= size:
        first = int(np.searchsorted(positions, size))
        raise CodecError(f"mask.index[{first}]: {positions[first]} is not below n={size}")
    if 2 * count <= size:
        return positions.astype(np.uint32)
    kept = np.ones(size, np.bool_)
    kept[positions] = False
    return np.flatnonzero(kept).astype(np.uint32)


def _gaps(positions: NDArray[np.uint32]) -> NDArray[np.uint32]:
    gaps = np.empty_like(positions)
    gaps[0] = positions[0]
    np.subtract(positions[1:], positions[:-1], out=gaps[1:])
    gaps[1:] -= 1
    return gaps


def _from_bitmap(data: bytes, size: int, count: int) -> NDArray[np.uint32]:
    if len(data) != max_mask_bytes(size):
        raise CodecError(
            f"mask: a bitmap of {len(data)} bytes, n={size} has {max_mask_bytes(size)}"
        )
    if size % 8 and data[-1] >> size % 8:
        raise CodecError(f"mask: the bitmap has bits past n={size}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=size, bitorder="little")
    indices = np.flatnonzero(bits.view(np.bool_)).astype(np.uint32)
    if indices.size != count:
        raise CodecError(f"mask: the bitmap has {indices.size} ones, expected k={count}")
    return indices


def _to_varints(gaps: NDArray[np.uint32]) -> bytes:
    lengths = np.ones(gaps.size, np.int64)
    for group in range(1, MAX_VARINT_BYTES):
        lengths += gaps >= 1 << 7 * group
    starts = np.cumsum(lengths) - lengths
    data = np.empty(int(lengths.sum()), np.uint8)
    for group in range(int(lengths.max())):
        longer = np.flatnonzero(lengths > group)
        more = (lengths[longer] > group + 1).astype(np.uint32) << 7
        data[starts[longer] + group] = gaps[longer] >> 7 * group & 0x7F | more
    return data.tobytes()


def _from_varints(data: bytes, rarer: int) -> NDArray[np.int64]:
    groups = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(groups < 0x80)
    if ends.size != rarer or ends[-1] != groups.size - 1:
        raise CodecError(f"mask: {ends.size} varints in {groups.size} bytes, expected {rarer}")
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() > MAX_VARINT_BYTES:
        first = int(np.argmax(lengths > MAX_VARINT_BYTES))
        raise CodecError(
            f"mask.gap[{first}]: {lengths[first]} bytes, the limit is {MAX_VARINT_BYTES}"
        )
    padded = (lengths > 1) & (groups[ends] == 0)
    if padded.any():
        raise CodecError(f"mask.gap[{int(np.argmax(padded))}]: not the shortest varint")
    starts = ends - lengths + 1
    gaps = (groups[starts] & 0x7F).astype(np.int64)
    for group in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > group)
        gaps[longer] |= (groups[starts[longer] + group] & 0x7F).astype(np.int64) << 7 * group
    return gaps


def _rice_parameter(gaps: NDArray[np.uint32]) -> tuple[int, int]:
    """The Rice parameter b that makes ``gaps`` (m,) shortest, and the section's length in bytes."""
    # For geometric gaps the best 2**b is near .69 of the mean; one step on either side covers the rest.
    near = max(int(gaps.mean()).bit_length() - 1, 0)
    choices = (
        (bits, _rice_bytes(gaps.size, bits, int((gaps >> bits).sum())))
        for bits in range(max(near - 1, 0), min(near + 1, MAX_RICE_BITS) + 1)
    )
    return min(choices, key=lambda choice: choice[1])


def _rice_bytes(rarer: int, bits: int, quotient_sum: int) -> int:
    return 1 + -(-(rarer + quotient_sum) // 8) + -(-rarer * bits // 8)


def _to_rice(gaps: NDArray[np.uint32], bits: int) -> bytes:
    """b, then every gap >> b in unary (zeros closed by a one), then the low b bits as b bit planes."""
    ends = np.cumsum((gaps >> bits).astype(np.int64) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, np.uint8)
    unary[ends] = 1
    low = np.empty((bits, gaps.size), np.uint8)
    for plane in range(bits):
        low[plane] = gaps >> plane & 1
    parts = (np.packbits(part.reshape(-1), bitorder="little").tobytes() for part in (unary, low))
    return bytes([bits]) + b"".join(parts)


def _from_rice(data: memoryview, rarer: int) -> NDArray[np.int64]:
    bits = data[0] if len(data) else MAX_RICE_BITS + 1
    if bits > MAX_RICE_BITS:
        raise CodecError(f"mask: no Rice parameter within 0 to {MAX_RICE_BITS}")
    unary_bytes = len(data) - 1 - -(-rarer * bits // 8)
    if unary_bytes < 1:
        raise CodecError(f"mask: {len(data)} bytes for {rarer} Rice codes with b={bits}")
    unary = np.unpackbits(np.frombuffer(data[1 : 1 + unary_bytes], np.uint8), bitorder="little")
    ends = np.flatnonzero(unary)
    if ends.size != rarer or ends[-1] < 8 * (unary_bytes - 1):
        raise CodecError(f"mask: {ends.size} Rice codes in {unary_bytes} bytes, expected {rarer}")
    low = np.unpackbits(np.frombuffer(data[1 + unary_bytes :], np.uint8), bitorder="little")
    if low[rarer * bits :].any():
        raise CodecError("mask: bits past the last Rice code")
    gaps = np.diff(ends, prepend=-1).astype(np.int64) - 1 << bits
    for plane in range(bits):
        gaps |= low[plane * rarer : (plane + 1) * rarer].astype(np.int64) << plane
    return gaps
