"""Bytes that no honest peer sends: refused with ``CodecError`` alone, and without taking memory."""

import json
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.protocol.absurd import damaged

from sedge_protocol.codec import SparseVector, ValueCoding, decode, encode, mask_bitmap
from sedge_protocol.codec.bitmaps import to_bitmap, with_changes
from sedge_protocol.codec.compression import zstd
from sedge_protocol.codec.masks import MaskForm
from sedge_protocol.errors import CodecError

Coded = tuple[bytes, int, bytes | None]  # coded vector, n, and the bitmap of n that is its context


VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "sparse.json").read_text())
# Coded vectors of every form, coding and compression.
HONEST: list[Coded] = [
    (bytes.fromhex(case["coded"]), case["size"], case["context"] and bytes.fromhex(case["context"]))
    for case in VECTORS["accepted"]
    if case["size"] <= 32_768
]


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


def test_another_context_than_the_encoders() -> None:
    """Of any length and with any bits: a sound vector or ``CodecError``, never another exception."""
    rng = random.Random(8)
    accepted = 0
    for data, size, context in HONEST:
        assert _decodes(data, size, context)
        whole = -(-size // 8)
        for length in (0, 1, whole - 1, whole, whole + 1):
            accepted += _decodes(data, size, rng.randbytes(length))
        for other in (None, bytes(whole), b"\xff" * whole):
            accepted += _decodes(data, size, other)
    assert 0 < accepted < 8 * len(HONEST)


def test_damaged_vectors_are_sound_or_refused_and_take_no_memory() -> None:
    """1.5 MB is what honest ones and this test itself need."""
    rng = random.Random(0)
    accepted = 0
    tracemalloc.start()
    try:
        for _ in range(2000):
            data, size, context = rng.choice(HONEST)
            accepted += _decodes(damaged(rng, [data]), size, context)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < accepted < 2000  # a changed mantissa is a vector like any other; a header is not
    assert peak < 1_500_000


def _peak_bytes(data: bytes, size: int, context: bytes | None = None) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            decode(data, size, context)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


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


BOMB = zstd.compress(bytes(2**26))


@pytest.mark.parametrize("form", [MaskForm.BITMAP, MaskForm.GAPS, MaskForm.CHANGES])
def test_a_mask_that_is_a_bomb_is_refused_before_it_is_decompressed(form: MaskForm) -> None:
    size = 100_000
    head = struct.pack("<BBBBII3I", 1, 0x20 | form, 2, 0, size, 1, len(BOMB), 1, 1)
    assert _peak_bytes(head + BOMB + b"\x80\x3f", size, bytes(size // 8)) < 100_000


def test_a_plane_that_is_a_bomb_is_refused_before_it_is_decompressed() -> None:
    size = 10_000
    head = struct.pack("<BBBBII3I", 1, 1, 0x22, 0, size, size, 0, size, len(BOMB))
    assert _peak_bytes(head + bytes(size) + BOMB, size) < 100_000


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
