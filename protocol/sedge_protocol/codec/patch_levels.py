"""How much of a patch a device starts with: the level of each of its elements, and the part up to a level.

Part j of a patch are its elements with a level of at most j, so each part lies within the next. A device
that may pick its part is offered the levels that occur, and 0 even where no element has it: part 0 is then
empty. Levels travel as a coded vector of their own, some 2 bits an element. k = elements of the patch.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.codec.compression import Compression
from sedge_protocol.codec.values import ValueCoding
from sedge_protocol.codec.vector import SparseVector, decode, encode
from sedge_protocol.errors import CodecError, Unencodable

Levels: TypeAlias = NDArray[np.uint8]

MAX_LEVEL = 7


def encode_levels(levels: Levels, compression: Compression = Compression.ZSTD) -> bytes:
    """Levels (k,) for the wire; empty where all of them are 0. Raises ``Unencodable`` for one above 7."""
    if not levels.any():
        return b""
    if levels.max() > MAX_LEVEL:
        raise Unencodable(f"levels: {levels.max()}, expected 0 to {MAX_LEVEL}")
    values = levels.astype(np.float32)  # of so few bits that bf16 holds them
    return encode(SparseVector(levels.size, None, values), ValueCoding.BF16, compression)


def decode_levels(coded: bytes, count: int) -> Levels:
    """The levels (k,) of a patch of ``count`` elements. Raises ``CodecError`` for anything else."""
    if not coded:
        return np.zeros(count, np.uint8)
    if count == 0:
        raise CodecError(f"levels: {len(coded)} bytes, expected none without a patch")
    vector = decode(coded, count)
    values = vector.values
    whole = (values >= 0) & (values <= MAX_LEVEL) & (values == np.floor(values))
    if vector.count != count or not whole.all():
        raise CodecError(f"levels: expected {count} whole numbers from 0 to {MAX_LEVEL}")
    return values.astype(np.uint8)


def offered(levels: Levels) -> tuple[int, ...]:
    """The levels that a device may pick, ascending."""
    return tuple(sorted({0, *levels.tolist()}))


def part(patch: SparseVector, levels: Levels, level: int) -> SparseVector | None:
    """The part of a patch up to a level: None if it is empty, the patch itself if it is all of it."""
    chosen = levels <= level  # (k,)
    if chosen.all():
        return patch
    if not chosen.any():
        return None
    indices = np.arange(patch.size, dtype=np.uint32) if patch.indices is None else patch.indices
    return SparseVector(patch.size, indices[chosen], patch.values[chosen])
