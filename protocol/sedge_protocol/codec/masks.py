"""Encodes which of n positions a sparse vector keeps.

Two forms are self-contained: a bitmap, and the gaps between positions as varints. Each is also tried with
compression. Real masks follow the rows of a layer, so both can fall below n·H(k/n) bits, the entropy of a
random mask. A third form writes the changes to a context, an earlier mask of the same vector that both
sides have, as varints. The smallest form is sent, so a context never costs a byte.

Gaps describe the rarer of kept and left-out positions, m = min(k, n - k) of them. Nothing here looks at
values or keeps a mask between calls. WIRE.md specifies every byte.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.codec.bitmaps import (
    bitmap_bytes,
    changed_ranks,
    from_bitmap,
    is_bitmap,
    left_out,
    to_bitmap,
    with_changes,
)
from sedge_protocol.codec.compression import Compression, grow, shrink
from sedge_protocol.codec.gaps import MAX_VARINT_BYTES, from_gaps, from_varints, to_gaps, to_varints
from sedge_protocol.errors import CodecError


class MaskForm(IntEnum):
    """How a mask's positions are written. Only CHANGES needs a context."""

    EMPTY = 0
    DENSE = 1
    BITMAP = 2
    GAPS = 3
    CHANGES = 4


Section = tuple[MaskForm, Compression, bytes]


def max_mask_bytes(size: int) -> int:
    """Return the maximum length of a mask section for n = ``size``: the length of a plain bitmap."""
    return bitmap_bytes(size)


def max_changes_bytes(size: int) -> int:
    """Return the length limit of form CHANGES before compression: a quarter byte per position."""
    return 2 * bitmap_bytes(size)


def encode_positions(
    indices: NDArray[np.uint32],
    size: int,
    compression: Compression,
    context: bytes | None = None,
) -> Section:
    """Encode sorted ``indices`` (k,), 0 < k < n = ``size``.

    Returns the smallest form, its compression and its bytes. ``context`` is the bitmap of an earlier mask
    of the same n.
    """
    rarer = indices if 2 * indices.size <= size else left_out(indices, size)
    few, many = 8 * rarer.size <= size, 16 * rarer.size > size
    bitmap = to_bitmap(indices, size) if many or context is not None else b""
    # On real masks, gaps and bitmap take about the same space near m = n/10. Below n/16, gaps are up to a
    # fifth smaller. Above n/8, the bitmap is smaller, compressed or not.
    plain = [(MaskForm.GAPS, to_varints(to_gaps(rarer)))] if few else []
    plain += [(MaskForm.BITMAP, bitmap)] if many else []
    plain += [] if context is None else _changes(context, bitmap, size)
    candidates = [(form, Compression.NONE, data) for form, data in plain]
    if compression is not Compression.NONE:
        candidates += [(form, compression, shrink(data, compression)) for form, data in plain]
    return min(candidates, key=lambda candidate: len(candidate[2]))


def decode_positions(
    form: MaskForm,
    compression: Compression,
    data: memoryview,
    size: int,
    count: int,
    context: bytes | None = None,
) -> NDArray[np.uint32]:
    """Decode a mask section to its k = ``count`` sorted positions below n = ``size``, 0 < k < n.

    ``data`` is at most ``max_mask_bytes`` long. Raises ``CodecError`` for a section that is not a mask of
    exactly k of n positions, and for one that needs a context if that is missing or is not a bitmap of n
    bits.
    """
    match form:
        case MaskForm.BITMAP:
            positions = from_bitmap(grow(data, compression, max_mask_bytes(size)), size)
        case MaskForm.GAPS:
            return _from_gaps(grow(data, compression, _max_gap_bytes(size, count)), size, count)
        case MaskForm.CHANGES:
            positions = _from_changes(data, compression, size, context)
        case _:
            raise CodecError(f"mask: form {form.name.lower()} does not fit k={count}, n={size}")
    if positions.size != count:
        raise CodecError(f"mask: {positions.size} positions, expected k={count}")
    return positions


def _changes(before: bytes, after: bytes, size: int) -> list[tuple[MaskForm, bytes]]:
    """Return the form CHANGES in a list, or an empty list if it would exceed its length limit."""
    ranks = changed_ranks(before, after)
    if ranks.size <= max_changes_bytes(size):
        data = to_varints(to_gaps(ranks))
        if len(data) <= max_changes_bytes(size):
            return [(MaskForm.CHANGES, data)]
    return []


def _from_changes(
    data: memoryview, compression: Compression, size: int, context: bytes | None
) -> NDArray[np.uint32]:
    if context is None:
        raise CodecError("mask: its form needs an earlier mask as context, but there is none")
    if not is_bitmap(context, size):
        raise CodecError(
            f"mask: the context of {len(context)} bytes does not match a bitmap of n={size}"
        )
    changes = from_gaps(from_varints(grow(data, compression, max_changes_bytes(size))), size)
    return with_changes(context, changes, size)


def _max_gap_bytes(size: int, count: int) -> int:
    """Return the length limit of form GAPS before compression."""
    return MAX_VARINT_BYTES * min(count, size - count)


def _from_gaps(data: bytes, size: int, count: int) -> NDArray[np.uint32]:
    positions, rarer = from_gaps(from_varints(data), size), min(count, size - count)
    if positions.size != rarer:
        raise CodecError(f"mask: {positions.size} varints, expected {rarer}")
    return positions if 2 * count <= size else left_out(positions, size)
