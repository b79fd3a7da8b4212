"""A sparse float32 vector, and the coded vector that carries it between device and cloud.

A coded vector consists of a header with all lengths, the mask section (``masks``) and the byte planes of
the values (``values``). The mask section and each plane are compressed if that makes them shorter. If both
sides have the mask of an earlier vector, its bitmap can be the context of the next one. ``decode`` checks
every limit before it allocates memory. WIRE.md specifies every byte. n is the number of elements in the
vector, k the number of elements kept.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.codec.bitmaps import bitmap_bytes, is_bitmap, to_bitmap
from sedge_protocol.codec.blockwise import blocks
from sedge_protocol.codec.compression import Compression, grow, shrink
from sedge_protocol.codec.exponent_order import in_place, ordered
from sedge_protocol.codec.masks import MaskForm, decode_positions, encode_positions, max_mask_bytes
from sedge_protocol.codec.values import (
    Plane,
    ValueCoding,
    from_planes,
    plane_sizes,
    to_planes,
)
from sedge_protocol.errors import CodecError, LocalError, Unencodable
from sedge_protocol.layout import MAX_PARAMETERS, Theta

VERSION = 1
# The head: version, mask tag, value tag, order, n, k. The lengths of the mask section and of each plane
# follow it.
_HEAD = struct.Struct("<BBBBII")
HEAD_BYTES = _HEAD.size
# The low four bits of a tag are the mask's form or the values' coding, and the high four bits are the
# compression, as indices into these tuples. An index is never reused.
_COMPRESSIONS = (Compression.NONE, Compression.ZLIB, Compression.ZSTD)
_CODINGS = (
    ValueCoding.FP32,
    ValueCoding.FP16,
    ValueCoding.BF16,
    ValueCoding.INT8,
    ValueCoding.INT4,
    ValueCoding.SIGN,
)
# In these codings the exponent extends into the second-highest plane, so that plane can be sorted by
# exponent.
_BY_EXPONENT = (ValueCoding.FP32, ValueCoding.BF16)
# If all n elements are sent, a coded vector exceeds 4 bytes per element by at most its head and five
# lengths.
MAX_DENSE_OVERHEAD = _HEAD.size + 4 * 5
# Sorting fewer values than this saves nothing.
_MIN_ORDERED = 512


@dataclass(frozen=True, eq=False)
class SparseVector:
    """A vector (n,) that has ``values`` (k,) at sorted ``indices`` (k,), or at all n if these are None.

    The constructor raises ``LocalError`` if types, shapes or ``size`` do not match.
    """

    size: int
    indices: NDArray[np.uint32] | None
    values: NDArray[np.float32]

    def __post_init__(self) -> None:
        if not 0 < self.size <= MAX_PARAMETERS:
            raise LocalError(f"sparse: n={self.size}, expected 1 to {MAX_PARAMETERS}")
        expected = self.size if self.indices is None else len(self.indices)
        if self.values.dtype != np.float32 or self.values.shape != (expected,):
            raise LocalError(
                f"sparse.values: {self.values.dtype} {self.values.shape}, expected float32 ({expected},)"
            )
        if self.indices is not None and (
            self.indices.dtype != np.uint32 or self.indices.ndim != 1 or expected > self.size
        ):
            raise LocalError(
                f"sparse.indices: {self.indices.dtype} {self.indices.shape}, "
                f"expected uint32 (k,) with k at most n={self.size}"
            )

    @property
    def count(self) -> int:
        """The number of kept elements, k."""
        return self.values.size

    @property
    def where(self) -> slice | NDArray[np.intp]:
        """The positions of the values, as an index for arrays. They are converted on every access.

        They have numpy's native index type, which makes reads and writes twice as fast as with ``indices``.
        """
        return slice(None) if self.indices is None else self.indices.astype(np.intp)

    def dense(self) -> Theta:
        """Return a new dense vector (n,), with zeros where the sparse vector has no value."""
        theta = np.zeros(self.size, np.float32)
        self.scatter_into(theta)
        return theta

    def add_to(self, theta: Theta) -> None:
        """Add the values to theta (n,) in place. Raises ``LocalError`` if theta has a different shape."""
        self._check_target(theta)
        if self.indices is None:
            theta += self.values
            return
        for block in blocks(self.count):
            np.add.at(theta, self.indices[block].astype(np.intp), self.values[block])

    def scatter_into(self, theta: Theta) -> None:
        """Overwrite elements of theta (n,) with the values, in place.

        Raises ``LocalError`` if theta has a different shape.
        """
        self._check_target(theta)
        if self.indices is None:
            theta[:] = self.values
            return
        for block in blocks(self.count):
            theta[self.indices[block].astype(np.intp)] = self.values[block]

    def _check_target(self, theta: Theta) -> None:
        if theta.dtype != np.float32 or theta.shape != (self.size,):
            raise LocalError(f"theta: {theta.dtype} {theta.shape}, expected float32 ({self.size},)")


def encode(
    vector: SparseVector,
    values: ValueCoding = ValueCoding.BF16,
    compression: Compression = Compression.ZSTD,
    context: bytes | None = None,
) -> bytes:
    """Encode a vector.

    ``context``, the ``mask_bitmap`` of an earlier vector, never makes the result longer. Raises
    ``Unencodable`` if the indices are not strictly increasing and below n, or if a value is not finite,
    before or after coding. Raises ``LocalError`` for a context that is not a bitmap of n bits.
    """
    _check_indices(vector)
    if context is not None and not is_bitmap(context, vector.size):
        raise LocalError(
            f"sparse: the context of {len(context)} bytes does not match a bitmap of n={vector.size}"
        )
    form, mask_compression, mask = _encode_mask(vector, compression, context)
    raw = to_planes(np.ascontiguousarray(vector.values), values)
    cuts: list[list[int]] = [[] for _ in raw]
    by_exponent = compression is not Compression.NONE and values in _BY_EXPONENT
    by_exponent &= vector.count >= _MIN_ORDERED
    if by_exponent:
        raw[-2], cuts[-2] = ordered(raw[-2], raw[-1])
    planes = [shrink(plane.tobytes(), compression, at) for plane, at in zip(raw, cuts, strict=True)]
    head = _HEAD.pack(
        VERSION,
        form | _COMPRESSIONS.index(mask_compression) << 4,
        _CODINGS.index(values) | _COMPRESSIONS.index(compression) << 4,
        by_exponent,
        vector.size,
        vector.count,
    )
    lengths = struct.pack(f"<{1 + len(planes)}I", len(mask), *map(len, planes))
    return b"".join((head, lengths, mask, *planes))


def decode(data: bytes | memoryview, size: int, context: bytes | None = None) -> SparseVector:
    """Decode a coded vector, which must have n = ``size``.

    ``context`` is used only if the coded vector needs it. Raises ``CodecError`` unless ``data`` is a
    complete, valid, finite vector of that size, or if a required context is missing or is not a bitmap of n
    bits.
    """
    header, sections = _sections(memoryview(data), size)
    values = _decode_values(header, sections[1:])
    return SparseVector(size, _decode_mask(header, sections[0], context), values)


class Stated(NamedTuple):
    """The contents of a coded vector's header: n, k, and how the values are coded and compressed."""

    size: int
    kept: int
    coding: ValueCoding
    compression: Compression


def stated(head: bytes) -> Stated | None:
    """Read the header in the first ``HEAD_BYTES`` of a coded vector.

    Returns None if the header is invalid. Nothing after the header is checked.
    """
    if len(head) < HEAD_BYTES:
        return None
    try:
        header = _read_head(memoryview(head), _HEAD.unpack_from(head)[4])
    except CodecError:
        return None
    return Stated(header.size, header.kept, header.coding, header.compression)


def mask_bitmap(vector: SparseVector) -> bytes:
    """Return the mask as a bitmap of ceil(n/8) bytes, lowest bit first.

    It can be the context of a later vector.
    """
    if vector.indices is None:
        return ((1 << vector.size) - 1).to_bytes(bitmap_bytes(vector.size), "little")
    return to_bitmap(vector.indices, vector.size)


def mask_needed(coded: bytes) -> bool:
    """Return True if a coded vector from ``encode`` can be decoded only with its context."""
    return coded[1] & 15 == MaskForm.CHANGES


class _Header(NamedTuple):
    size: int
    kept: int
    form: MaskForm
    mask_compression: Compression
    coding: ValueCoding
    compression: Compression
    by_exponent: bool


def _check_indices(vector: SparseVector) -> None:
    indices = vector.indices
    if indices is None or not indices.size:
        return
    rising = indices[1:] > indices[:-1]
    if not rising.all():
        at = int(np.argmin(rising)) + 1
        raise Unencodable(f"sparse.index[{at}]: {indices[at]} is not above {indices[at - 1]}")
    if indices[-1] >= vector.size:
        raise Unencodable(f"sparse.index: {indices[-1]} is not below n={vector.size}")


def _encode_mask(
    vector: SparseVector, compression: Compression, context: bytes | None
) -> tuple[MaskForm, Compression, bytes]:
    if vector.count == 0:
        return MaskForm.EMPTY, Compression.NONE, b""
    if vector.indices is None or vector.count == vector.size:
        return MaskForm.DENSE, Compression.NONE, b""
    return encode_positions(vector.indices, vector.size, compression, context)


def _sections(data: memoryview, size: int) -> tuple[_Header, list[memoryview]]:
    """Check the header and split ``data`` into sections, the mask section first.

    No section is longer than n and k allow.
    """
    header = _read_head(data, size)
    raw_bytes = plane_sizes(header.coding, header.kept)
    start = _HEAD.size + 4 * (1 + len(raw_bytes))
    if len(data) < start:
        raise CodecError(f"coded vector: {len(data)} bytes, the header alone has {start}")
    lengths = struct.unpack_from(f"<{1 + len(raw_bytes)}I", data, _HEAD.size)
    if len(data) != start + sum(lengths):
        raise CodecError(
            f"coded vector: {len(data)} bytes, the header states {start + sum(lengths)}"
        )
    limits = (max_mask_bytes(size) if 0 < header.kept < size else 0, *raw_bytes)
    for place, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
        if length > limit:
            raise CodecError(f"section {place}: {length} bytes, the limit is {limit}")
    sections: list[memoryview] = []
    for length in lengths:
        sections.append(data[start : start + length])
        start += length
    return header, sections


def _read_head(data: memoryview, size: int) -> _Header:
    if len(data) and data[0] != VERSION:
        raise CodecError(f"coded vector: version {data[0]}, this codec reads {VERSION}")
    if len(data) < _HEAD.size:
        raise CodecError(
            f"coded vector: {len(data)} bytes, the header alone has at least {_HEAD.size}"
        )
    _, mask_tag, value_tag, order, stated_size, count = _HEAD.unpack_from(data)
    if stated_size != size or not 0 < size <= MAX_PARAMETERS:
        raise CodecError(f"coded vector: n={stated_size}, expected {size}")
    if count > size:
        raise CodecError(f"coded vector: k={count} is above n={size}")
    try:
        header = _Header(
            size,
            count,
            MaskForm(mask_tag & 15),
            _COMPRESSIONS[mask_tag >> 4],
            _CODINGS[value_tag & 15],
            _COMPRESSIONS[value_tag >> 4],
            order == 1,
        )
    except (ValueError, IndexError) as exc:
        raise CodecError(f"coded vector: unknown tag, mask {mask_tag}, values {value_tag}") from exc
    if order > (header.coding in _BY_EXPONENT):
        raise CodecError(f"coded vector: order {order} does not fit {header.coding} values")
    return header


def _decode_values(header: _Header, sections: list[memoryview]) -> NDArray[np.float32]:
    """Decode the values (k,).

    This is a separate function so that the planes are freed before the mask needs memory.
    """
    planes: list[bytes | Plane] = [
        _grow_plane(section, header.compression, raw_bytes, place)
        for place, (section, raw_bytes) in enumerate(
            zip(sections, plane_sizes(header.coding, header.kept), strict=True)
        )
    ]
    if header.by_exponent:
        planes[-2] = in_place(*(np.frombuffer(plane, np.uint8) for plane in planes[-2:]))
    return from_planes(planes, header.coding, header.kept)


def _decode_mask(
    header: _Header, section: memoryview, context: bytes | None
) -> NDArray[np.uint32] | None:
    expected = {0: MaskForm.EMPTY, header.size: MaskForm.DENSE}.get(header.kept)
    if expected is None:
        return decode_positions(
            header.form, header.mask_compression, section, header.size, header.kept, context
        )
    if header.form is not expected or header.mask_compression is not Compression.NONE:
        raise CodecError(
            f"mask: form {header.form.name.lower()} with {header.mask_compression} "
            f"does not fit k={header.kept}, n={header.size}"
        )
    return None if expected is MaskForm.DENSE else np.empty(0, np.uint32)


def _grow_plane(section: memoryview, compression: Compression, raw_bytes: int, place: int) -> bytes:
    if len(section) == raw_bytes:  # a compressed plane is always shorter than an uncompressed one
        return bytes(section)
    plane = grow(section, compression, raw_bytes)
    if len(plane) != raw_bytes:
        raise CodecError(f"plane {place}: {len(plane)} bytes, expected {raw_bytes}")
    return plane
