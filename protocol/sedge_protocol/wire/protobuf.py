"""Reads and writes Protocol Buffers' wire format field by field. The caller knows the schema.

Source: protobuf.dev, "Encoding". The deprecated groups (wire types 3 and 4) are treated as malformed.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sedge_protocol.errors import CodecError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10


class Field(NamedTuple):
    """A field's number, wire type and content: ``value`` (unsigned) for a varint, otherwise ``data``."""

    number: int
    wire: int
    value: int
    data: memoryview


def fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in order, as views of ``data``.

    Raises ``CodecError`` at the first malformed field.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield Field(number, wire, value, data[:0])
            continue
        if wire == BYTES:
            length, at = _varint(data, at)
        elif wire in _FIXED:
            length = _FIXED[wire]
        else:
            raise CodecError(f"byte {at}: wire type {wire}, expected 0, 1, 2 or 5")
        if length > len(data) - at:
            raise CodecError(f"byte {at}: {length} bytes expected, {len(data) - at} left")
        yield Field(number, wire, 0, data[at : at + length])
        at += length


def field(number: int, content: int | bytes | memoryview) -> bytes:
    """Encode a field: an unsigned number as a varint, or a message, text or bytes."""
    if isinstance(content, int):
        return _encoded(number << 3 | VARINT) + _encoded(content)
    return _encoded(number << 3 | BYTES) + _encoded(len(content)) + bytes(content)


def nested(number: int, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Encode a field whose content is the concatenation of ``parts``.

    The result is also in parts, so that large ones are not copied.
    """
    size = sum(map(len, parts))
    return [_encoded(number << 3 | BYTES) + _encoded(size), *parts]


def again(known: Field) -> bytes:
    """Encode a field again, exactly as it was read."""
    if known.wire in _FIXED:
        return _encoded(known.number << 3 | known.wire) + bytes(known.data)
    return field(known.number, known.value if known.wire == VARINT else known.data)


def numbers(packed: memoryview) -> Iterator[int]:
    """Yield the unsigned varints in a packed field. Raises ``CodecError`` if it is malformed."""
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        yield value


def text(data: memoryview | bytes) -> str:
    """Decode a name for an error message; works for any bytes."""
    return bytes(data[:100]).decode("ascii", "backslashreplace")


def _encoded(number: int) -> bytes:
    """Encode an unsigned number as a varint."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Decode a varint of up to 64 bits. Returns the number and the offset after it."""
    value = 0
    for index, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if value >= 2**64:
                break
            return value, at + index + 1
    raise CodecError(f"byte {at}: not a varint of at most 64 bits")
