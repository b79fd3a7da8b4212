"""The codec and the second decoder (slow_decoder.py) agree on every vector, sound or not."""

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.protocol.slow_decoder import Broken, decode_slowly

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode, mask_bitmap
from sedge_protocol.errors import CodecError

VECTORS = Path(__file__).parents[2] / "vectors" / "sparse.json"


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
    for case in vectors["accepted"] + vectors["readable"]:
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
