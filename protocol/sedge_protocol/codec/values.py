"""Encodes float32 values as byte planes in one of six precisions, and decodes them.

Plane j has byte j of every value. In real updates, the high planes (sign and exponent) compress to 2 of 8
bits and the low ones hardly at all, so each plane is compressed separately. In the three coarsest
precisions, each block of adjacent values shares one scale, a bfloat16, and each value has a code of 8, 4 or
1 bits. Plane 0 has the codes, planes 1 and 2 the scales. The scale needs the range of a float32; as an
fp16, it would turn every delta below 4e-6 into 0. Arrays are (k,). WIRE.md specifies every byte.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.codec.blockwise import blocks
from sedge_protocol.errors import CodecError, Unencodable

Floats: TypeAlias = NDArray[np.float32]
Plane: TypeAlias = NDArray[np.uint8]

# One scale per 64 values costs .25 bit per value. With one scale per tensor, int8's relative error would be
# 4e-2 to 8e-2.
INT8_BLOCK = 64
INT4_BLOCK = 32
SIGN_BLOCK = 64


class ValueCoding(StrEnum):
    """The precision of values on the wire.

    Measured on real deltas with a tenth of the elements kept, after compression:

        coding      bits per value      relative error
        fp32        22                  0
        fp16        12                  2e-4
        bf16        9                   2e-3
        int8        7.6                 6e-3
        int4        3.5                 .09
        sign        .4 to .9            .5
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    SIGN = "sign"


def plane_sizes(coding: ValueCoding, count: int) -> tuple[int, ...]:
    """Return the length in bytes of each plane that encodes k = ``count`` values, lowest byte first."""
    match coding:
        case ValueCoding.FP32:
            return (count,) * 4
        case ValueCoding.FP16 | ValueCoding.BF16:
            return (count,) * 2
        case ValueCoding.INT8:
            return count, *_scale_sizes(count, INT8_BLOCK)
        case ValueCoding.INT4:
            return -(-count // 2), *_scale_sizes(count, INT4_BLOCK)
        case ValueCoding.SIGN:
            return -(-count // 8), *_scale_sizes(count, SIGN_BLOCK)


def to_planes(values: Floats, coding: ValueCoding) -> list[Plane]:
    """Encode ``values`` (k,) as planes.

    Raises ``Unencodable`` for a value that would not be finite after decoding.
    """
    _check_representable(values, coding)
    return _quantised(values, coding)


def from_planes(planes: Sequence[bytes | Plane], coding: ValueCoding, count: int) -> Floats:
    """Decode ``count`` values from planes, which must have the lengths of ``plane_sizes``.

    Raises ``CodecError`` for a value that is not finite and for an invalid code, scale or padding.
    """
    values = _dequantised([np.frombuffer(plane, np.uint8) for plane in planes], coding, count)
    for block in blocks(count):
        finite = np.isfinite(values[block])
        if not finite.all():
            first = block.start + int(np.argmin(finite))
            raise CodecError(f"value[{first}]: {values[first]} is not finite")
    return values


def decoded_values(values: Floats, coding: ValueCoding) -> Floats:
    """Return ``values`` (k,) exactly as the peer will decode them.

    Raises ``Unencodable`` for a value that would not be finite.
    """
    return _dequantised(to_planes(values, coding), coding, values.size)


def _check_representable(values: Floats, coding: ValueCoding) -> None:
    if not values.size:
        return
    # Every coding is monotonic, so it suffices to test the largest magnitude. It is tested alone in a
    # block, which gives it the largest scale. Both max and min propagate NaN.
    with np.errstate(all="ignore"):
        largest = np.maximum(values.max(), -values.min())
        arrived = _dequantised(_quantised(np.array([largest], np.float32), coding), coding, 1)
        if np.isfinite(largest) and np.isfinite(arrived[0]):
            return
    finite = np.isfinite(values)
    first = int(np.argmin(finite)) if not finite.all() else int(np.argmax(np.abs(values)))
    raise Unencodable(f"value[{first}]: {values[first]:.3e} is not a finite number in {coding}")


def _quantised(values: Floats, coding: ValueCoding) -> list[Plane]:
    match coding:
        case ValueCoding.FP32:
            return _split(values.view(np.uint32), 4)
        case ValueCoding.FP16:
            return _split(values.astype(np.float16).view(np.uint16), 2)
        case ValueCoding.BF16:
            return _split(_nearest_bf16(values), 2)
        case ValueCoding.INT8:
            codes, scales = _to_codes(values, INT8_BLOCK, 127)
            return [codes.view(np.uint8), *scales]
        case ValueCoding.INT4:
            codes, scales = _to_codes(values, INT4_BLOCK, 7)
            return [_nibbles(codes), *scales]
        case ValueCoding.SIGN:
            return [np.packbits(np.signbit(values), bitorder="little"), *_mean_magnitudes(values)]


def _dequantised(planes: Sequence[Plane], coding: ValueCoding, count: int) -> Floats:
    with np.errstate(all="ignore"):  # malicious bytes can cause NaN or overflow; the caller checks
        match coding:
            case ValueCoding.FP32:
                return _joined(planes).view(np.float32)
            case ValueCoding.FP16:
                return _joined(planes).astype(np.uint16).view(np.float16).astype(np.float32)
            case ValueCoding.BF16:
                return _wide(_joined(planes))
            case ValueCoding.INT8:
                return _times_scales(_checked(planes[0].view(np.int8), -128), planes, INT8_BLOCK)
            case ValueCoding.INT4:
                codes = _from_nibbles(planes[0], count)
                return _times_scales(_checked(codes, -8), planes, INT4_BLOCK)
            case ValueCoding.SIGN:
                return _times_scales(_from_signs(planes[0], count), planes, SIGN_BLOCK)


def _scale_sizes(count: int, block: int) -> tuple[int, int]:
    blocks = -(-count // block)
    return blocks, blocks


def _split(words: NDArray[np.integer], width: int) -> list[Plane]:
    return [(words >> 8 * byte).astype(np.uint8) for byte in range(width)]


def _joined(planes: Sequence[Plane]) -> NDArray[np.uint32]:
    words = planes[-1].astype(np.uint32)
    for plane in reversed(planes[:-1]):
        words <<= 8
        words |= plane
    return words


def _nearest_bf16(values: Floats) -> NDArray[np.uint32]:
    """Round ``values`` to the nearest bfloat16, ties to even. Returns the bit patterns."""
    bits = values.view(np.uint32)
    rounded = (
        bits + 0x7FFF
    )  # just below half of the last kept bit; a tie rounds up if that bit is 1
    rounded += bits >> 16 & 1
    rounded >>= 16
    return rounded


def _blocks(values: Floats, block: int) -> Floats:
    """Reshape ``values`` (k,) to rows (B, block), padding the last row with zeros."""
    blocks = np.zeros((-(-values.size // block), block), np.float32)
    blocks.reshape(-1)[: values.size] = values
    return blocks


def _to_codes(values: Floats, block: int, most: int) -> tuple[NDArray[np.int8], list[Plane]]:
    """Quantise ``values`` to codes (k,) from -most to most.

    Returns the codes and the planes of their scales.
    """
    parts = [_part_to_codes(values[part], block, most) for part in blocks(values.size)]
    nothing = np.empty(0, np.int8), np.empty(0, np.uint32)
    codes, scale_bits = zip(nothing, *parts, strict=True)
    return np.concatenate(codes), _split(np.concatenate(scale_bits), 2)


def _part_to_codes(
    values: Floats, block: int, most: int
) -> tuple[NDArray[np.int8], NDArray[np.uint32]]:
    """Quantise a part of the values. Returns codes (k,) from -most to most and the bits of their scales."""
    rows = _blocks(values, block)
    largest = np.abs(rows).max(1, initial=0)  # (B,)
    # The scale is rounded up to a bfloat16, so that no code exceeds ``most``.
    scale_bits = (largest / np.float32(most)).view(np.uint32) + 0xFFFF >> 16
    scales = (scale_bits << 16).view(np.float32)
    codes = np.rint(rows / np.where(scales > 0, scales, np.float32(1))[:, None]).astype(np.int8)
    return codes.reshape(-1)[: values.size], scale_bits


def _mean_magnitudes(values: Floats) -> list[Plane]:
    """Return the planes of each block's mean |value|, which minimises the squared error of signs alone."""
    blocks = np.abs(_blocks(values, SIGN_BLOCK))
    counts = np.full(len(blocks), SIGN_BLOCK)
    counts[-1:] -= blocks.size - values.size
    means = blocks.sum(1, dtype=np.float64) / counts
    return _split(_nearest_bf16(means.astype(np.float32)), 2)


def _nibbles(codes: NDArray[np.int8]) -> Plane:
    """Pack two codes into each byte, the first one in the low half."""
    padded = np.zeros(codes.size + codes.size % 2, np.uint8)
    padded[: codes.size] = codes.view(np.uint8) & 15
    padded[1::2] <<= 4
    nibbles: Plane = padded[::2] | padded[1::2]
    return nibbles


def _from_nibbles(plane: Plane, count: int) -> NDArray[np.int8]:
    nibbles = np.empty(2 * plane.size, np.uint8)
    nibbles[::2] = plane & 15
    nibbles[1::2] = plane >> 4
    if nibbles[count:].any():
        raise CodecError("value: bits are set past the last code")
    return (nibbles[:count].view(np.int8) ^ 8) - 8


def _from_signs(plane: Plane, count: int) -> NDArray[np.int8]:
    """Return the signs (k,) in ``plane`` as 1 and -1."""
    bits = np.unpackbits(plane, bitorder="little")
    if bits[count:].any():
        raise CodecError("value: bits are set past the last sign")
    return 1 - 2 * bits[:count].view(np.int8)


def _checked(codes: NDArray[np.int8], unused: int) -> NDArray[np.int8]:
    if codes.size and codes.min() == unused:
        first = int(np.argmin(codes))
        raise CodecError(f"value[{first}]: code {unused}, expected {unused + 1} to {-1 - unused}")
    return codes


def _times_scales(codes: NDArray[np.int8], planes: Sequence[Plane], block: int) -> Floats:
    scales = _wide(_joined(planes[1:]))
    if np.signbit(scales).any():
        raise CodecError(f"scale[{int(np.argmax(np.signbit(scales)))}]: negative")
    values = codes.astype(np.float32)
    whole = codes.size // block
    values[: whole * block].reshape(whole, block)[:] *= scales[:whole, None]
    values[whole * block :] *= scales[whole:].repeat(codes.size % block)
    return values


def _wide(bits: NDArray[np.uint32]) -> Floats:
    """Widen bfloat16 bit patterns to float32 values, in place."""
    bits <<= 16
    return bits.view(np.float32)
