"""A second decoder, written from WIRE.md in plain loops, that must agree on every vector.

It shares only the decompressors with the product; everything else is done bit by bit.
"""

import itertools
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode, mask_bitmap
from sedge_protocol.codec.compression import decompress_zstd
from sedge_protocol.errors import CodecError

Decoded = tuple[list[int], list[bytes]]  # positions, and the values as float32 bytes
VECTORS = Path(__file__).parents[2] / "vectors" / "sparse.json"


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


def _agree(data: bytes, size: int, context: bytes | None = None) -> bool:
    """Both accept with the same result, or both refuse; gives whether they accept."""
    try:
        positions, values = decode_slowly(data, size, context)
    except Broken:
        with pytest.raises(CodecError):
            decode(data, size, context)
        return False
    found = decode(data, size, context)
    kept = range(size) if found.indices is None else found.indices.tolist()
    assert list(kept) == positions
    assert found.values.tobytes() == b"".join(values)
    return True


Small = tuple[bytes, int, bytes]


def _small_vectors() -> list[Small]:
    """Coded vectors, their n and the context that half of them were coded with."""
    rng = np.random.default_rng(2)
    found: list[Small] = []
    for coding, compression in itertools.product(ValueCoding, Compression):
        for number in range(12):
            size = int(rng.choice([1, 8, 9, 64, 65, 200, 1000]))
            count = int(rng.choice([0, 1, size, size - 1, size // 2, size // 4, size // 20]))
            kept = np.sort(rng.choice(size, min(count, size), replace=False)).astype(np.uint32)
            values = rng.choice([rng.normal(), 0.5, -0.0, 1e-6, -3e4], kept.size)
            vector = SparseVector(size, kept, values.astype(np.float32))
            moved = np.setxor1d(kept, rng.choice(size, int(rng.integers(0, 4)) % size))
            earlier = SparseVector(size, moved.astype(np.uint32), np.zeros(moved.size, np.float32))
            context = mask_bitmap(earlier)
            coded = encode(vector, coding, compression, context if number % 2 else None)
            found.append((coded, size, context))
    return found


SMALL = _small_vectors()


def test_agrees_on_random_vectors() -> None:
    for data, size, context in SMALL:
        assert _agree(data, size, context)
    assert sum(data[1] & 15 == 4 for data, _, _ in SMALL) > 30


def test_agrees_on_the_vectors_for_other_languages() -> None:
    vectors = json.loads(VECTORS.read_text())
    for case in vectors["accepted"]:
        if case["size"] <= 40_000:
            assert _agree(*_parts(case)), case["name"]
    for case in vectors["refused"]:
        assert not _agree(*_parts(case)), case["rule"]


def _parts(case: dict[str, Any]) -> tuple[bytes, int, bytes | None]:
    context = None if case["context"] is None else bytes.fromhex(case["context"])
    return bytes.fromhex(case["coded"]), case["size"], context


def test_agrees_on_changed_vectors() -> None:
    rng = np.random.default_rng(3)
    accepted = 0
    for _ in range(2000):
        data, size, context = SMALL[int(rng.integers(len(SMALL)))]
        place = int(rng.integers(min(len(data), 48)))
        changed = data[:place] + rng.bytes(1) + data[place + 1 :]
        accepted += _agree(changed, size, context)
    assert 100 < accepted < 1900


def test_agrees_on_noise_in_the_codes_of_every_block_coding() -> None:
    rng = np.random.default_rng(5)
    accepted = {3: 0, 4: 0, 5: 0}
    for _ in range(600):
        coding = int(rng.integers(3, 6))
        k = int(rng.integers(1, 140))
        blocks = -(-k // (32 if coding == 4 else 64))
        codes = bytearray(rng.bytes(-(-k // {3: 1, 4: 2, 5: 8}[coding])))
        if rng.random() < 0.9:  # no unused code, and often no stray bit
            codes = bytearray(byte & 0x77 for byte in codes) if coding < 5 else codes
            codes[-1] &= 0x07 if k % 2 or coding < 4 else 0x77
        scales = rng.bytes(blocks), bytes(byte & 0x7F for byte in rng.bytes(blocks))
        sections = b"".join((bytes(codes), *scales))
        head = struct.pack("<BBBBII4I", 1, 1, coding, 0, k, k, 0, len(codes), blocks, blocks)
        accepted[coding] += _agree(head + sections, k)
    assert min(accepted.values()) > 50


def test_agrees_on_noise_in_every_order() -> None:
    rng = np.random.default_rng(6)
    accepted = {(coding, order): 0 for coding in range(6) for order in range(3)}
    for _ in range(1500):
        coding, order = int(rng.integers(6)), int(rng.integers(3))
        k = int(rng.integers(1, 40))
        width = 4 if coding == 0 else 2 if coding < 3 else 3
        lengths = (k,) * width if coding < 3 else (k, 1, 1)
        planes = [bytes(byte & 0x3F for byte in rng.bytes(length)) for length in lengths]
        head = struct.pack(f"<BBBBII{1 + width}I", 1, 1, coding, order, k, k, 0, *lengths)
        accepted[coding, order] += _agree(head + b"".join(planes), k)
    assert {key for key, times in accepted.items() if key[1] and times} == {(0, 1), (2, 1)}
    assert min(accepted[0, 1], accepted[2, 1]) > 20


def test_agrees_on_noise_in_every_mask_form() -> None:
    rng = np.random.default_rng(4)
    accepted = {2: 0, 3: 0, 4: 0}
    for _ in range(3000):
        size = int(rng.integers(2, 60))
        count = int(rng.integers(1, size))
        form = int(rng.choice(list(accepted)))
        rarer = min(count, size - count)
        mask = rng.bytes(int(rng.integers(0, (size + 7) // 8 + 1)))
        if form in (3, 4):
            mask = bytes(byte & 0x83 for byte in mask[: rarer + 1])
        head = struct.pack("<BBBBII3I", 1, form, 2, 0, size, count, len(mask), count, count)
        earlier = np.flatnonzero(rng.random(size) < count / size).astype(np.uint32)
        context = mask_bitmap(SparseVector(size, earlier, np.zeros(earlier.size, np.float32)))
        accepted[form] += _agree(head + mask + bytes(count) + b"\x3f" * count, size, context)
    assert min(accepted.values()) > 3
