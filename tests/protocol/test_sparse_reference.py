"""A second decoder, written from WIRE.md in plain loops, that must agree on every vector.

It shares only the decompressors with the product; everything else is done bit by bit.
"""

import itertools
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from sedge_protocol.errors import CodecError
from sedge_protocol.sparse import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.zstd import decompress

Decoded = tuple[list[int], list[bytes]]  # positions, and the values as float32 bytes
VECTORS = Path(__file__).parents[1] / "vectors" / "sparse.json"


class Broken(Exception):
    """The coded vector breaks the named rule."""


def _must(rule: bool, name: str) -> None:
    if not rule:
        raise Broken(name)


def decode_slowly(data: bytes, expected: int) -> Decoded:
    """Positions and values, or ``Broken``."""
    _must(len(data) >= 12, "header")
    version, mask_tag, value_tag, reserved, n, k = struct.unpack("<BBBBII", data[:12])
    _must(version == 1 and reserved == 0 and n == expected and 1 <= n <= 2**28 and k <= n, "header")
    form, coding = mask_tag % 16, value_tag % 16
    mask_compression, compression = mask_tag // 16, value_tag // 16
    _must(form <= 4 and coding <= 3 and mask_compression <= 2 and compression <= 2, "tag")
    blocks = (k + 63) // 64
    raw = {0: [k] * 4, 1: [k] * 2, 2: [k] * 2, 3: [k, blocks, blocks]}[coding]
    start = 16 + 4 * len(raw)
    _must(len(data) >= start, "header")
    lengths = struct.unpack(f"<{1 + len(raw)}I", data[12:start])
    _must(start + sum(lengths) == len(data), "lengths")
    sections: list[bytes] = []
    for length in lengths:
        sections.append(data[start : start + length])
        start += length
    positions = _positions(form, mask_compression, sections[0], n, k)
    planes: list[bytes] = []
    for section, size in zip(sections[1:], raw, strict=True):
        _must(len(section) <= size, "plane")
        whole = section if len(section) == size else _decompressed(section, compression, size)
        _must(len(whole) == size, "plane")
        planes.append(whole)
    return positions, [_value(planes, coding, i) for i in range(k)]


def _decompressed(section: bytes, compression: int, limit: int) -> bytes:
    if compression == 2:
        try:
            return decompress(section, limit)
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


def _positions(form: int, compression: int, section: bytes, n: int, k: int) -> list[int]:
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
    m = min(k, n - k)
    if form == 3:
        gaps = _varints(_decompressed(section, compression, 4 * m), m)
    else:
        _must(form == 4 and compression == 0, "form")
        gaps = _rice_gaps(section, m)
    rare: list[int] = []
    for gap in gaps:
        rare.append((rare[-1] + 1 if rare else 0) + gap)
        _must(rare[-1] < n, "position")
    return rare if 2 * k <= n else sorted(set(range(n)) - set(rare))


def _varints(section: bytes, m: int) -> list[int]:
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
    _must(groups == 0 and len(gaps) == m, "varints")
    return gaps


def _rice_gaps(section: bytes, m: int) -> list[int]:
    _must(len(section) > 0 and section[0] <= 27, "b")
    b = section[0]
    low_bytes = (m * b + 7) // 8
    unary, low = section[1 : len(section) - low_bytes], section[len(section) - low_bytes :]
    if b == 0:
        unary, low = section[1:], b""
    _must(len(section) - 1 > low_bytes, "unary")
    gaps: list[int] = []
    zeros = 0
    for i in range(8 * len(unary)):
        if len(gaps) == m:
            _must(not _bit(unary, i) and i // 8 == len(unary) - 1 and i % 8 > 0, "after the last")
        elif _bit(unary, i):
            gaps.append(zeros << b)
            zeros = 0
        else:
            zeros += 1
    _must(len(gaps) == m, "ones")
    for i in range(8 * len(low)):
        if i >= m * b:
            _must(not _bit(low, i), "after the low bits")
        else:
            gaps[i % m] |= _bit(low, i) << i // m
    return gaps


def _value(planes: list[bytes], coding: int, i: int) -> bytes:
    if coding == 0:
        (value,) = struct.unpack("<f", bytes(plane[i] for plane in planes))
    elif coding == 1:
        (value,) = struct.unpack("<e", bytes(plane[i] for plane in planes))
    elif coding == 2:
        (value,) = struct.unpack("<f", bytes([0, 0, planes[0][i], planes[1][i]]))
    else:
        (code,) = struct.unpack("<b", planes[0][i : i + 1])
        (scale,) = struct.unpack("<f", bytes([0, 0, planes[1][i // 64], planes[2][i // 64]]))
        _must(code != -128 and planes[2][i // 64] < 128, "int8")
        # The product of 7 and 8 bits is exact in float64, so packing rounds it only once.
        value = code * scale
        if code == 0 and scale == scale and scale != float("inf"):
            value = 0.0
    _must(abs(value) < float("inf"), "finite")
    try:
        return struct.pack("<f", value)
    except OverflowError as exc:
        raise Broken("finite") from exc


def _agree(data: bytes, size: int) -> bool:
    """Both accept with the same result, or both refuse; gives whether they accept."""
    try:
        positions, values = decode_slowly(data, size)
    except Broken:
        with pytest.raises(CodecError):
            decode(data, size)
        return False
    found = decode(data, size)
    kept = range(size) if found.indices is None else found.indices.tolist()
    assert list(kept) == positions
    assert found.values.tobytes() == b"".join(values)
    return True


def _small_vectors() -> list[tuple[bytes, int]]:
    rng = np.random.default_rng(2)
    found: list[tuple[bytes, int]] = []
    for coding, compression in itertools.product(ValueCoding, Compression):
        for _ in range(12):
            size = int(rng.choice([1, 8, 9, 64, 65, 200, 1000]))
            count = int(rng.choice([0, 1, size, size - 1, size // 2, size // 4, size // 20]))
            kept = np.sort(rng.choice(size, min(count, size), replace=False)).astype(np.uint32)
            values = rng.choice([rng.normal(), 0.5, -0.0, 1e-6, -3e4], kept.size)
            vector = SparseVector(size, kept, values.astype(np.float32))
            found.append((encode(vector, coding, compression), size))
    return found


SMALL = _small_vectors()


def test_agrees_on_random_vectors() -> None:
    for data, size in SMALL:
        assert _agree(data, size)


def test_agrees_on_the_vectors_for_other_languages() -> None:
    vectors = json.loads(VECTORS.read_text())
    for case in vectors["accepted"]:
        if case["size"] <= 10_000:
            assert _agree(bytes.fromhex(case["coded"]), case["size"]), case["name"]
    for case in vectors["refused"]:
        assert not _agree(bytes.fromhex(case["coded"]), case["size"]), case["rule"]


def test_agrees_on_changed_vectors() -> None:
    rng = np.random.default_rng(3)
    accepted = 0
    for _ in range(8000):
        data, size = SMALL[int(rng.integers(len(SMALL)))]
        place = int(rng.integers(min(len(data), 48)))
        changed = data[:place] + rng.bytes(1) + data[place + 1 :]
        accepted += _agree(changed, size)
    assert 500 < accepted < 7500


def test_agrees_on_noise_in_every_mask_form() -> None:
    rng = np.random.default_rng(4)
    accepted = {2: 0, 3: 0, 4: 0}
    for _ in range(30_000):
        size = int(rng.integers(2, 60))
        count = int(rng.integers(1, size))
        form = int(rng.integers(2, 5))
        rarer = min(count, size - count)
        mask = rng.bytes(int(rng.integers(0, (size + 7) // 8 + 1)))
        if form == 3:
            mask = bytes(byte & 0x83 for byte in mask[: rarer + 1])
        elif form == 4 and mask:
            mask = bytes([int(rng.integers(0, 4))]) + mask[1:]
        head = struct.pack("<BBBBII3I", 1, form, 2, 0, size, count, len(mask), count, count)
        accepted[form] += _agree(head + mask + bytes(count) + b"\x3f" * count, size)
    assert min(accepted.values()) > 30
