"""Which of n positions a sparse vector keeps, as few bytes.

Three forms stand alone: a bitmap, the gaps between positions as varints, and the same gaps as a Rice code.
Bitmap and varints are also tried compressed: real masks follow the rows of a layer, so both fall far below
n·H(k/n) bits, the entropy of a random mask, near which the Rice code stays. A fourth form needs an earlier
mask of the same vector, the context, which both sides hold: the varints of what changed. A fifth models the
rows and columns of the vector's matrices, which an encoder must know (``factors``). The smallest form is
sent, so neither a context nor a matrix ever costs a byte.

Gaps describe the rarer of kept and left-out positions, m = min(k, n - k) of them.

Nothing here looks at values or keeps a mask from one call to the next. Byte for byte: WIRE.md.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.bitmaps import (
    bitmap_bytes,
    changed_ranks,
    from_bitmap,
    is_bitmap,
    left_out,
    to_bitmap,
    with_changes,
)
from sedge_protocol.compression import Compression, grow, shrink
from sedge_protocol.errors import CodecError
from sedge_protocol.factors import from_factors, to_factors
from sedge_protocol.gaps import (
    MAX_VARINT_BYTES,
    from_gaps,
    from_rice,
    from_varints,
    rice_parameter,
    to_gaps,
    to_rice,
    to_varints,
)
from sedge_protocol.mask_fit import fit
from sedge_protocol.mask_model import Matrix, entropy_bits

# A model of the matrices ends at .44 to .6 n·H(k/n) on real masks; it is not tried where less is in hand.
MODELLED_SHARE = 0.4
# Rarer than one in so many, and the model costs more than it tells.
MODELLED_FROM = 128


class MaskForm(IntEnum):
    """How positions are written; 8 and above need the context."""

    EMPTY = 0
    DENSE = 1
    BITMAP = 2
    GAPS = 3
    RICE = 4
    FACTORS = 5
    CHANGES = 8


Section = tuple[MaskForm, Compression, bytes]


def max_mask_bytes(size: int) -> int:
    """The longest mask section for n = ``size``: a plain bitmap is always possible."""
    return bitmap_bytes(size)


def max_changes_bytes(size: int) -> int:
    """The longest varints of form changes, before compression: a quarter byte for each position."""
    return 2 * bitmap_bytes(size)


def encode_positions(
    indices: NDArray[np.uint32],
    size: int,
    compression: Compression,
    context: bytes | None = None,
    matrices: Sequence[Matrix] = (),
) -> Section:
    """The smallest form of sorted ``indices`` (k,), 0 < k < n = ``size``, and how it is compressed.

    ``context`` is the bitmap of an earlier mask of the same n; ``matrices``, apart and ascending, are those
    that may be modelled.
    """
    rarer = indices if 2 * indices.size <= size else left_out(indices, size)
    few, many = 8 * rarer.size <= size, 16 * rarer.size > size
    worth_a_model = bool(matrices) and MODELLED_FROM * rarer.size > size
    bitmap = to_bitmap(indices, size) if many or worth_a_model or context is not None else b""
    # On real masks gaps and bitmap cross near m = n/10. Below n/16 gaps win by up to a fifth; above n/8
    # their varints alone outweigh the bitmap, and lose compressed too.
    plain = [(MaskForm.GAPS, to_varints(to_gaps(rarer)))] if few else []
    plain += [(MaskForm.BITMAP, bitmap)] if many else []
    plain += [] if context is None else _changes(context, bitmap, size)
    found = [(form, Compression.NONE, data) for form, data in plain]
    if compression is not Compression.NONE:
        found += [(form, compression, shrink(data, compression)) for form, data in plain]
    best = min(found, key=lambda candidate: len(candidate[2]))
    if worth_a_model and 8 * len(best[2]) > MODELLED_SHARE * entropy_bits(rarer.size, size):
        best = min(best, _factors(bitmap, size, matrices, compression), key=lambda one: len(one[2]))
    bits = rice_parameter(rarer, len(best[2]))
    if bits is not None:
        return MaskForm.RICE, Compression.NONE, to_rice(to_gaps(rarer), bits)
    return best


def decode_positions(
    form: MaskForm,
    compression: Compression,
    data: memoryview,
    size: int,
    count: int,
    context: bytes | None = None,
) -> NDArray[np.uint32]:
    """The ``count`` sorted positions below n = ``size`` that a mask section names, 0 < k < n.

    ``data`` is at most ``max_mask_bytes`` long. Raises ``CodecError`` for a section that is not a mask
    of exactly k of n positions, and for one that needs a context when that is not a bitmap of n.
    """
    match form:
        case MaskForm.BITMAP:
            positions = from_bitmap(grow(data, compression, max_mask_bytes(size)), size)
        case MaskForm.CHANGES:
            positions = _from_changes(data, compression, size, context)
        case MaskForm.FACTORS:
            positions = from_factors(data, compression, size)
        case _:
            return _from_gaps(form, compression, data, size, count)
    if positions.size != count:
        raise CodecError(f"mask: {positions.size} positions, expected k={count}")
    return positions


def _factors(
    bitmap: bytes, size: int, matrices: Sequence[Matrix], compression: Compression
) -> Section:
    """The form factors."""
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=size, bitorder="little")
    kept = bits.view(np.bool_)
    models = [fit(kept[matrix.slice], matrix) for matrix in matrices]
    return MaskForm.FACTORS, compression, to_factors(kept, models, compression)


def _changes(before: bytes, after: bytes, size: int) -> list[tuple[MaskForm, bytes]]:
    """The form changes, where it is within its limit."""
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
        raise CodecError("mask: its form needs the context, an earlier mask, and there is none")
    if not is_bitmap(context, size):
        raise CodecError(f"mask: the context of {len(context)} bytes is not a bitmap of n={size}")
    changes = from_gaps(from_varints(grow(data, compression, max_changes_bytes(size))), size)
    return with_changes(context, changes, size)


def _from_gaps(
    form: MaskForm, compression: Compression, data: memoryview, size: int, count: int
) -> NDArray[np.uint32]:
    rarer = min(count, size - count)
    if form is MaskForm.GAPS:
        positions = from_gaps(from_varints(grow(data, compression, MAX_VARINT_BYTES * rarer)), size)
    elif form is MaskForm.RICE and compression is Compression.NONE:
        positions = from_gaps([from_rice(data, rarer)], size)
    else:
        raise CodecError(
            f"mask: form {form.name.lower()} with {compression} for k={count}, n={size}"
        )
    if positions.size != rarer:
        raise CodecError(f"mask: {positions.size} gaps, expected {rarer}")
    return positions if 2 * count <= size else left_out(positions, size)
