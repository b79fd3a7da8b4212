"""Float32 values as byte planes in one of four precisions, and back.

A plane holds byte j of every value. The high planes (sign and exponent) of real updates compress to 2 of
8 bits while the low ones hardly do, so each plane is compressed by itself. Arrays are (k,).

Nothing here compresses or frames; the bytes are described in WIRE.md.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError, LocalError

Floats: TypeAlias = NDArray[np.float32]
Plane: TypeAlias = NDArray[np.uint8]

# One scale for 64 values costs .25 bit a value and leaves a relative error of 5e-3 on real updates;
# one scale for a whole tensor leaves 4e-2 to 8e-2.
INT8_BLOCK = 64


class ValueCoding(StrEnum):
    """Precision on the wire."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


def plane_sizes(coding: ValueCoding, count: int) -> tuple[int, ...]:
    """The length in bytes of every plane of k = ``count`` values, lowest byte first."""
    if coding is ValueCoding.INT8:
        blocks = -(-count // INT8_BLOCK)
        return count, blocks, blocks
    return (count,) * (4 if coding is ValueCoding.FP32 else 2)


def to_planes(values: Floats, coding: ValueCoding) -> list[Plane]:
    """The planes of ``values`` (k,). Raises ``LocalError`` for a value that would not arrive finite."""
    _check_representable(values, coding)
    return _quantised(values, coding)


def from_planes(planes: Sequence[bytes], coding: ValueCoding) -> Floats:
    """The values (k,) of planes with the lengths of ``plane_sizes``.

    Raises ``CodecError`` when a value is not finite or an int8 code or scale breaks its rule.
    """
    values = _dequantised([np.frombuffer(plane, np.uint8) for plane in planes], coding)
    finite = np.isfinite(values)
    if not finite.all():
        first = int(np.argmin(finite))
        raise CodecError(f"value[{first}]: {values[first]} is not finite")
    return values


def decoded_values(values: Floats, coding: ValueCoding) -> Floats:
    """``values`` (k,) as the peer will decode them, bit for bit.

    Raises ``LocalError`` for a value that would not arrive finite.
    """
    return _dequantised(to_planes(values, coding), coding)


def _check_representable(values: Floats, coding: ValueCoding) -> None:
    if not values.size:
        return
    # Every coding is monotonic, so only the largest magnitude can overflow. A NaN comes through both
    # max and min, and an int8 block of one value has the scale that its largest value gives any block.
    with np.errstate(all="ignore"):
        largest = np.maximum(values.max(), -values.min())
        arrived = _dequantised(_quantised(np.array([largest], np.float32), coding), coding)
        if np.isfinite(largest) and np.isfinite(arrived[0]):
            return
    finite = np.isfinite(values)
    first = int(np.argmin(finite)) if not finite.all() else int(np.argmax(np.abs(values)))
    raise LocalError(f"value[{first}]: {values[first]} is not a finite number in {coding}")


def _quantised(values: Floats, coding: ValueCoding) -> list[Plane]:
    match coding:
        case ValueCoding.FP32:
            return _split(values.view(np.uint32), 4)
        case ValueCoding.FP16:
            return _split(values.astype(np.float16).view(np.uint16), 2)
        case ValueCoding.BF16:
            bits = values.view(np.uint32)
            # Round to nearest, ties to even: half of the last kept bit, less one where that bit is 0.
            rounded = bits + 0x7FFF
            rounded += bits >> 16 & 1
            return _split(rounded >> 16, 2)
        case ValueCoding.INT8:
            return _to_int8(values)


def _dequantised(planes: Sequence[Plane], coding: ValueCoding) -> Floats:
    with np.errstate(all="ignore"):  # hostile bytes make NaN and overflow; the caller looks
        match coding:
            case ValueCoding.FP32:
                return _joined(planes).view(np.float32)
            case ValueCoding.FP16:
                return _joined(planes).astype(np.uint16).view(np.float16).astype(np.float32)
            case ValueCoding.BF16:
                return (_joined(planes) << 16).view(np.float32)
            case ValueCoding.INT8:
                return _from_int8(planes)


def _split(words: NDArray[np.integer], width: int) -> list[Plane]:
    return [(words >> 8 * byte).astype(np.uint8) for byte in range(width)]


def _joined(planes: Sequence[Plane]) -> NDArray[np.uint32]:
    words = planes[-1].astype(np.uint32)
    for plane in reversed(planes[:-1]):
        words <<= 8
        words |= plane
    return words


def _to_int8(values: Floats) -> list[Plane]:
    blocks = np.zeros((-(-values.size // INT8_BLOCK), INT8_BLOCK), np.float32)
    blocks.reshape(-1)[: values.size] = values
    largest = np.abs(blocks).max(1, initial=0)  # (blocks,)
    # A scale is a bfloat16: the 2 bytes of a float16 with the range of a float32, for fp16 would turn
    # every delta below 4e-6 into 0. It is rounded up so that no code passes 127.
    scale_bits = (largest / np.float32(127)).view(np.uint32) + 0xFFFF >> 16
    scales = (scale_bits << 16).view(np.float32)
    codes = np.rint(blocks / np.where(scales > 0, scales, np.float32(1))[:, None]).astype(np.int8)
    return [codes.reshape(-1)[: values.size].view(np.uint8), *_split(scale_bits, 2)]


def _from_int8(planes: Sequence[Plane]) -> Floats:
    codes = planes[0].view(np.int8)
    if (codes == -128).any():
        raise CodecError(f"value[{int(np.argmin(codes))}]: code -128, expected -127 to 127")
    scales = (_joined(planes[1:]) << 16).view(np.float32)
    if np.signbit(scales).any():
        raise CodecError(f"scale[{int(np.argmax(np.signbit(scales)))}]: negative")
    return codes.astype(np.float32) * np.repeat(scales, INT8_BLOCK)[: codes.size]
