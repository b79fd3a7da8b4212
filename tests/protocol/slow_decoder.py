"""A second decoder, written from coded-vector.md in plain loops.

It shares only the zstd decompressor with the product; everything else is done bit by bit.
"""

import struct
import zlib

from sedge_protocol.codec.compression import decompress_zstd
from sedge_protocol.errors import CodecError

Decoded = tuple[list[int], list[bytes]]  # positions, and the values as float32 bytes


class Broken(Exception):
    """The coded vector breaks the named rule."""


def _must(rule: bool, name: str) -> None:
    if not rule:
        raise Broken(name)


def decode_slowly(data: bytes, expected: int, context: bytes | None = None) -> Decoded:
    """Positions and values, or ``Broken``."""
    _must(len(data) >= 12, "header")
    version, mask_tag, value_tag, order, n, k = struct.unpack("<BBBBII", data[:12])
    _must(version == 1 and n == expected and 1 <= n <= 2**28 and k <= n, "header")
    form, coding = mask_tag % 16, value_tag % 16
    mask_compression, compression = mask_tag // 16, value_tag // 16
    _must(form <= 4 and coding <= 5 and mask_compression <= 2 and compression <= 2, "tag")
    _must(order == 0 or (order == 1 and coding in (0, 2)), "order")
    raw = [
        [k] * 4,
        [k] * 2,
        [k] * 2,
        [k, (k + 63) // 64, (k + 63) // 64],
        [(k + 1) // 2, (k + 31) // 32, (k + 31) // 32],
        [(k + 7) // 8, (k + 63) // 64, (k + 63) // 64],
    ][coding]
    start = 16 + 4 * len(raw)
    _must(len(data) >= start, "header")
    lengths = struct.unpack(f"<{1 + len(raw)}I", data[12:start])
    _must(start + sum(lengths) == len(data), "lengths")
    sections: list[bytes] = []
    for length in lengths:
        sections.append(data[start : start + length])
        start += length
    positions = _positions(form, mask_compression, sections[0], n, k, context)
    planes: list[bytes] = []
    for section, size in zip(sections[1:], raw, strict=True):
        _must(len(section) <= size, "plane")
        whole = section if len(section) == size else _decompressed(section, compression, size)
        _must(len(whole) == size, "plane")
        planes.append(whole)
    if order == 1:
        planes[-2] = _by_position(planes[-2], planes[-1])
    _must(coding != 4 or k % 2 == 0 or planes[0][-1] < 16, "padding")
    _must(coding != 5 or k % 8 == 0 or planes[0][-1] >> k % 8 == 0, "padding")
    return positions, [_value(planes, coding, i) for i in range(k)]


def _by_position(plane: bytes, highest: bytes) -> bytes:
    """A plane that is written exponent by exponent."""
    places = [
        i for exponent in range(128) for i, byte in enumerate(highest) if byte % 128 == exponent
    ]
    found = bytearray(len(plane))
    for place, byte in zip(places, plane, strict=True):
        found[place] = byte
    return bytes(found)


def _decompressed(section: bytes, compression: int, limit: int) -> bytes:
    if compression == 2:
        try:
            return decompress_zstd(section, limit)
        except CodecError as exc:
            raise Broken("zstd") from exc
    if compression == 1:
        stream = zlib.decompressobj()
        try:
            whole = stream.decompress(section)
        except zlib.error as exc:
            raise Broken("zlib") from exc
        _must(stream.eof and not stream.unused_data and len(whole) <= limit, "zlib")
        return whole
    _must(len(section) <= limit, "limit")
    return section


def _bit(data: bytes, i: int) -> int:
    return data[i // 8] >> i % 8 & 1


def _positions(
    form: int, compression: int, section: bytes, n: int, k: int, context: bytes | None
) -> list[int]:
    if k in (0, n):
        _must(form == (0 if k == 0 else 1) and compression == 0 and section == b"", "empty, dense")
        return list(range(k))
    _must(len(section) <= (n + 7) // 8, "mask length")
    if form == 2:
        section = _decompressed(section, compression, (n + 7) // 8)
        _must(len(section) == (n + 7) // 8, "bitmap")
        ones = [p for p in range(8 * len(section)) if _bit(section, p)]
        _must(len(ones) == k and ones[-1] < n, "bitmap")
        return ones
    if form == 4:
        changes = _varints(_decompressed(section, compression, 2 * ((n + 7) // 8)))
        return _changed(_sum_up(changes, n), n, k, context)
    _must(form == 3, "form")
    m = min(k, n - k)
    gaps = _varints(_decompressed(section, compression, 4 * m))
    _must(len(gaps) == m, "varints")
    rare = _sum_up(gaps, n)
    return rare if 2 * k <= n else sorted(set(range(n)) - set(rare))


def _sum_up(gaps: list[int], n: int) -> list[int]:
    found: list[int] = []
    for gap in gaps:
        found.append((found[-1] + 1 if found else 0) + gap)
        _must(found[-1] < n, "position")
    return found


def _changed(ranks: list[int], n: int, k: int, context: bytes | None) -> list[int]:
    _must(context is not None and len(context) == (n + 7) // 8, "context")
    assert context is not None
    _must(not any(_bit(context, p) for p in range(n, 8 * len(context))), "context")
    kept = [p for p in range(n) if _bit(context, p)]
    order = kept + [p for p in range(n) if not _bit(context, p)]
    positions = set(kept) ^ {order[rank] for rank in ranks}
    _must(len(positions) == k, "k")
    return sorted(positions)


def _varints(section: bytes) -> list[int]:
    gaps: list[int] = []
    gap, groups = 0, 0
    for byte in section:
        gap += byte % 128 << 7 * groups
        groups += 1
        _must(groups <= 4, "varint")
        if byte < 128:
            _must(byte > 0 or groups == 1, "shortest varint")
            gaps.append(gap)
            gap, groups = 0, 0
    _must(groups == 0, "varints")
    return gaps


def _value(planes: list[bytes], coding: int, i: int) -> bytes:
    if coding == 0:
        (value,) = struct.unpack("<f", bytes(plane[i] for plane in planes))
    elif coding == 1:
        (value,) = struct.unpack("<e", bytes(plane[i] for plane in planes))
    elif coding == 2:
        (value,) = struct.unpack("<f", bytes([0, 0, planes[0][i], planes[1][i]]))
    else:
        block = i // (32 if coding == 4 else 64)
        (scale,) = struct.unpack("<f", bytes([0, 0, planes[1][block], planes[2][block]]))
        _must(planes[2][block] < 128, "scale")
        # The product of at most 7 and 8 bits is exact in float64, so packing rounds it only once.
        code = _code(planes[0], coding, i)
        value = code * scale
        if code == 0 and scale == scale and scale != float("inf"):
            value = 0.0
    _must(abs(value) < float("inf"), "finite")
    try:
        return struct.pack("<f", value)
    except OverflowError as exc:
        raise Broken("finite") from exc


def _code(plane: bytes, coding: int, i: int) -> int:
    if coding == 5:
        return -1 if _bit(plane, i) else 1
    code = plane[i] if coding == 3 else plane[i // 2] >> 4 * (i % 2) & 15
    half = 128 if coding == 3 else 8
    _must(code != half, "code")
    return code - 2 * half if code > half else code
