"""Bytes that no honest peer sends: refused with ``CodecError`` alone, and without taking memory."""

import itertools
import struct
import tracemalloc

import numpy as np
import pytest

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode, mask_bitmap
from sedge_protocol.codec.bitmaps import to_bitmap, with_changes
from sedge_protocol.codec.compression import zstd
from sedge_protocol.codec.masks import MaskForm
from sedge_protocol.errors import CodecError

Coded = tuple[bytes, int, bytes]  # coded vector, n, and a bitmap of n that may be its context


def _honest() -> list[Coded]:
    """Small coded vectors of every form, coding and compression."""
    rng = np.random.default_rng(1)
    found: list[Coded] = []
    for coding, compression in itertools.product(ValueCoding, Compression):
        for size, count in ((40, 0), (20, 20), (100, 50), (2000, 40), (600, 170), (300, 280)):
            kept = np.sort(rng.choice(size, count, replace=False)).astype(np.uint32)
            values = rng.choice([0.5, -0.25, 0.125, 1e-3], count).astype(np.float32)
            indices = None if count == size else kept
            vector = SparseVector(size, indices, values)
            context = _earlier(vector, rng)
            found.append((encode(vector, coding, compression), size, context))
            if compression is not Compression.ZLIB:
                found.append((encode(vector, coding, compression, context), size, context))
    rows = np.flatnonzero(np.arange(800) // 50 % 2).astype(np.uint32)
    for compression in Compression:
        for size, indices in ((800, rows), (32_000, rows * 40)):
            vector = SparseVector(size, indices, np.ones(rows.size, np.float32))
            found.append(
                (encode(vector, ValueCoding.BF16, compression), size, _earlier(vector, rng))
            )
    return found


def _earlier(vector: SparseVector, rng: np.random.Generator) -> bytes:
    """A mask that is near the one of ``vector``, as a bitmap."""
    bits = np.unpackbits(np.frombuffer(mask_bitmap(vector), np.uint8), bitorder="little")
    bits[rng.integers(0, vector.size, 1 + vector.size // 50)] ^= 1
    return np.packbits(bits, bitorder="little").tobytes()


HONEST = _honest()


def test_every_form_and_coding_is_among_the_honest_ones() -> None:
    assert {data[1] & 15 for data, _, _ in HONEST} == set(MaskForm)
    assert {data[2] & 15 for data, _, _ in HONEST} == set(range(6))
    assert sum(data[1] & 15 == MaskForm.CHANGES for data, _, _ in HONEST) >= 20


def _decodes(data: bytes, size: int, context: bytes | None) -> bool:
    """Whether ``data`` is accepted; what is accepted must be sound."""
    try:
        vector = decode(data, size, context)
    except CodecError:
        return False
    assert np.isfinite(vector.values).all()
    if vector.indices is not None and vector.count:
        assert (np.diff(vector.indices.astype(np.int64)) > 0).all()
        assert vector.indices[-1] < size
        assert vector.indices.size == vector.values.size
    return True


def _flipped(data: bytes, rng: np.random.Generator) -> bytes:
    """One byte changed, mostly in the first 40, where the structure is."""
    place = int(rng.integers(min(len(data), 40) if rng.random() < 0.5 else len(data)))
    return data[:place] + bytes([data[place] ^ int(rng.integers(1, 256))]) + data[place + 1 :]


def _mangled(data: bytes, rng: np.random.Generator) -> bytes:
    """Several changes at once: bytes replaced, removed, repeated, or lengths set to odd numbers."""
    mangled = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(len(mangled)))
        match int(rng.integers(4)):
            case 0:
                mangled[place] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
            case 1:
                del mangled[place : place + int(rng.integers(1, 4))]
            case 2:
                mangled[place:place] = mangled[place : place + 3]
            case _:
                word = int(rng.choice([0, 1, 2**31, 2**32 - 1]))
                place = 4 * int(rng.integers(1, 6))
                mangled[place : place + 4] = struct.pack("<I", word)
        mangled = mangled or bytearray(1)
    return bytes(mangled)


def test_changed_bytes_and_mangled_vectors() -> None:
    rng = np.random.default_rng(0)
    accepted = 0
    for _ in range(2000):
        data, size, context = HONEST[int(rng.integers(len(HONEST)))]
        accepted += _decodes(_flipped(data, rng), size, context)
        _decodes(_mangled(data, rng), size, context)
    assert 0 < accepted < 2000  # a changed mantissa is a vector like any other; a header is not


def test_another_context_than_the_encoders() -> None:
    """Of any length and with any bits: a sound vector or ``CodecError``, never another exception."""
    rng = np.random.default_rng(8)
    accepted = 0
    for data, size, context in HONEST:
        assert _decodes(data, size, context)
        for length in (0, 1, len(context) - 1, len(context), len(context) + 1):
            accepted += _decodes(data, size, rng.bytes(max(length, 0)))
        for other in (None, bytes(len(context)), b"\xff" * len(context)):
            accepted += _decodes(data, size, other)
    assert 0 < accepted < 8 * len(HONEST)


def _peak_bytes(data: bytes, size: int, context: bytes | None = None) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            decode(data, size, context)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_changed_byte_takes_memory() -> None:
    """Every vector here has n <= 32,000: 1.5 MB is what honest ones and this test itself need."""
    rng = np.random.default_rng(9)
    tracemalloc.start()
    try:
        for data, size, context in HONEST:
            _decodes(_flipped(data, rng), size, context)
            _decodes(_mangled(data, rng), size, context)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_500_000


def test_a_header_that_claims_much_takes_nothing() -> None:
    size = 2**28
    for count, mask, lengths in (
        (size, b"", (0, size, size)),
        (size, b"", (0, 0, 0)),
        (size // 2, b"\x01", (1, size // 2, size // 2)),
        (size // 2, b"\x04\xff", (2, 0, 0)),
        (1, bytes(21), (21, 1, 1)),
    ):
        head = struct.pack("<BBBBII3I", 1, 1 if count == size else 3, 2, 0, size, count, *lengths)
        assert _peak_bytes(head + mask + b"\x00\x00", size) < 100_000


def test_changes_that_are_a_bomb_are_refused_before_they_are_decompressed() -> None:
    size = 100_000
    bomb = zstd.compress(bytes(2**26))
    head = struct.pack("<BBBBII3I", 1, 0x24, 2, 0, size, 1, len(bomb), 1, 1)
    assert _peak_bytes(head + bomb + b"\x80\x3f", size, bytes(size // 8)) < 100_000


@pytest.mark.parametrize("stated", [True, False])
def test_a_plane_that_is_a_bomb_is_refused_by_its_header(stated: bool) -> None:
    bomb = zstd.compress(
        bytes(2**26), options={zstd.CompressionParameter.content_size_flag: stated}
    )
    size = 10_000
    head = struct.pack("<BBBBII3I", 1, 1, 0x22, 0, size, size, 0, size, len(bomb))
    assert _peak_bytes(head + bytes(size) + bomb, size) < 100_000


# Little bytes for much memory: every coding, exponents of all kinds, and masks of every plain form.
WIDE = 2**20
MANY = {
    "all": None,
    "all but one": np.arange(1, WIDE),
    "all but some": np.flatnonzero(np.arange(WIDE) % 9),
    "half": np.arange(0, WIDE, 2),
    "some": np.arange(0, WIDE, 9),
}


@pytest.mark.parametrize("coding", [ValueCoding.FP32, ValueCoding.INT8])
@pytest.mark.parametrize("name", MANY)
def test_a_few_bytes_take_twice_a_dense_vector_at_most(name: str, coding: ValueCoding) -> None:
    """The vector itself is that large where k is near n; beside it are its bitmap and blocks only."""
    indices = MANY[name]
    magnitudes = np.logspace(-4, 4, 200, dtype=np.float32)
    values = np.resize(magnitudes, WIDE if indices is None else indices.size)
    kept = None if indices is None else indices.astype(np.uint32)
    coded = encode(SparseVector(WIDE, kept, values), coding)
    assert len(coded) < 4096
    context = to_bitmap(np.arange(0, WIDE, 3, dtype=np.uint32), WIDE)
    changes = _changes(context)
    theta = np.zeros(WIDE, np.float32)
    tracemalloc.start()
    try:
        for data in (coded, changes):
            vector = decode(data, WIDE, context)
            vector.add_to(theta)
            mask_bitmap(vector)
            del vector
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * theta.nbytes + WIDE // 4 + 2**20


def _changes(context: bytes) -> bytes:
    """A coded vector whose mask is a context in which every fourth element has changed."""
    count = with_changes(context, np.arange(3, WIDE, 4, dtype=np.uint32), WIDE).size
    raw = (bytes([3]) * (WIDE // 4), bytes([1]) * count, bytes([1]) * count)
    sections = [zstd.compress(data) for data in raw]
    head = struct.pack("<BBBBII3I", 1, 0x24, 0x22, 1, WIDE, count, *map(len, sections))
    return head + b"".join(sections)
