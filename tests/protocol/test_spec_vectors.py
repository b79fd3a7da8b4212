"""spec.json against the code, and its shuffles, batches and feedback against the pages' own words."""

import hashlib
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.slow_decoder import decode_slowly
from tests.vectors.make_spec import vectors

from sedge_protocol.codec import decode
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.bundle import unpack
from sedge_protocol.wire.program import check_program

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "spec.json").read_text()
)
M32, M64, M128 = 2**32 - 1, 2**64 - 1, 2**128 - 1


def test_the_code_makes_the_vectors() -> None:
    assert json.loads(json.dumps(vectors())) == VECTORS


class Pcg64:
    """The generator, as training.md writes it down."""

    def __init__(self, seed: int) -> None:
        words = [seed & M32, seed >> 32, 0, 0]
        h = 0x43B0D7E5

        def hashed(v: int) -> int:
            nonlocal h
            v ^= h
            h = h * 0x931E8875 & M32
            v = v * h & M32
            return v ^ v >> 16

        def mixed(x: int, y: int) -> int:
            r = (x * 0xCA01F9DD - y * 0x4973F715) & M32
            return r ^ r >> 16

        pool = [hashed(word) for word in words]
        for s in range(4):
            for d in range(4):
                if s != d:
                    pool[d] = mixed(pool[d], hashed(pool[s]))
        h, out = 0x8B51F9DD, list[int]()
        for i in range(8):
            v = pool[i % 4] ^ h
            h = h * 0x58F38DED & M32
            v = v * h & M32
            out.append(v ^ v >> 16)
        word64 = [out[2 * j] | out[2 * j + 1] << 32 for j in range(4)]
        self.inc = 2 * (word64[2] << 64 | word64[3]) + 1 & M128
        self.state = self.inc
        self.state += word64[0] << 64 | word64[1]
        self._advance()
        self.high: int | None = None

    def _advance(self) -> None:
        self.state = (self.state * 0x2360ED051FC65DA44385DF649FCCF645 + self.inc) & M128

    def next32(self) -> int:
        if self.high is not None:
            high, self.high = self.high, None
            return high
        self._advance()
        r, x = self.state >> 122, self.state >> 64 ^ self.state & M64
        x = (x >> r | x << 64 - r) & M64
        self.high = x >> 32
        return x & M32

    def permutation(self, count: int) -> list[int]:
        p = list(range(count))
        for i in range(count - 1, 0, -1):
            mask = 2 ** i.bit_length() - 1
            while (j := self.next32() & mask) > i:
                pass
            p[i], p[j] = p[j], p[i]
        return p


@pytest.mark.parametrize("case", VECTORS["shuffles"], ids=lambda case: str(case["seed"]))
def test_shuffles_as_the_page_says(case: dict[str, Any]) -> None:
    generator = Pcg64(case["seed"])
    assert [generator.permutation(case["examples"]) for _ in case["epochs"]] == case["epochs"]


def batches(case: dict[str, Any]) -> Iterator[list[object]]:
    """T4, word by word."""
    count, size, last = case["examples"], case["batch_size"], case["last_batch"]
    if (last == "pad" and case["uses_batch_statistics"]) or (last == "drop" and count < size):
        last = "fill"
    generator = Pcg64(case["seed"])
    for epoch in range(2):
        p = generator.permutation(count)
        for start in range(0, count, size):
            rows = p[start : start + size]
            missing = size - len(rows)
            if not missing or last == "fill":
                around = [p[(start + i) % count] for i in range(len(rows), size)]
                yield [epoch, rows + around, [1.0] * size]
            elif last == "pad":
                yield [epoch, rows + [0] * missing, [1.0] * len(rows) + [0.0] * missing]


@pytest.mark.parametrize("case", VECTORS["batches"])
def test_batches_as_the_page_says(case: dict[str, Any]) -> None:
    assert list(batches(case)) == case["batches"]


@pytest.mark.parametrize("case", VECTORS["rates"])
def test_rates_as_the_page_says(case: dict[str, Any]) -> None:
    total, warmup, end = case["steps"], case["warmup_steps"], case["end_factor"]
    for t, rate in enumerate(case["rates"]):
        expected = case["learning_rate"] * (1 + (end - 1) * t / total)
        if t < warmup:
            expected *= (t + 1) / warmup
        assert rate == pytest.approx(expected, rel=1e-12)


def floats(text: str) -> list[float]:
    return list(struct.unpack(f"<{len(text) // 8}f", bytes.fromhex(text)))


def binary32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def rounded(values: list[float], r: int) -> list[float]:
    """T10's multiples of the k chosen values."""
    least = sorted(map(abs, values))[len(values) - r]
    g = max(m * 2.0**e for m in (4, 5, 6, 7) for e in range(-60, 9) if m * 2.0**e <= 2 * least)
    return [math.copysign(math.floor(abs(v) / g + 0.5) * g, v) for v in values]


@pytest.mark.parametrize("case", VECTORS["error_feedback"])
def test_error_feedback_as_the_page_says(case: dict[str, Any]) -> None:
    size, owed = case["size"], [0.0] * case["size"]
    k = max(1, round(case["fraction"] * size))
    for played in case["rounds"]:
        pairs = zip(floats(played["change"]), owed, strict=True)
        delta = [binary32(change + debt) for change, debt in pairs]
        largest = sorted(range(size), key=lambda i: (-abs(delta[i]), i))[:k]
        chosen = sorted(i for i in largest if abs(delta[i]) >= binary32(case["threshold"]))
        if case["values"] == "bf16" and case["fraction"] < 1:
            multiples = rounded([delta[i] for i in chosen], max(1, 3 * k // 4))
            chosen = [i for i, value in zip(chosen, multiples, strict=True) if value]
            expected = [value for value in multiples if value]
        else:
            expected = []
        sent = decode(bytes.fromhex(played["coded"]), size)
        indices = range(size) if sent.indices is None else sent.indices.tolist()
        assert list(indices) == chosen
        assert not expected or sent.values.tolist() == expected
        got = dict(zip(chosen, sent.values.tolist(), strict=True))
        owed = [binary32(value - got.get(i, 0.0)) for i, value in enumerate(delta)]
        assert owed == floats(played["owed"])


@pytest.mark.parametrize("case", VECTORS["versions"])
def test_versions_as_the_page_says(case: dict[str, Any]) -> None:
    """Step: element by element, in binary32; an element that is not touched stays as it is."""
    model = floats(case["base"])
    positions, values = decode_slowly(bytes.fromhex(case["step"]), len(model))
    for p, value in zip(positions, values, strict=True):
        model[p] = binary32(model[p] + struct.unpack("<f", value)[0])
    packed = struct.pack(f"<{len(model)}f", *model)
    assert packed.hex() == case["model"]
    assert hashlib.sha256(packed).hexdigest() == case["model_hash"]
    assert hashlib.sha256(bytes.fromhex(case["base"])).hexdigest() == case["base_hash"]


@pytest.mark.parametrize("case", VECTORS["bundles"], ids=lambda case: case["rule"])
def test_bundles(case: dict[str, Any]) -> None:
    blob = bytes.fromhex(case["blob"])
    if case["accepted"]:
        assert unpack(blob).manifest.layout.size == 7
    else:
        with pytest.raises(CodecError):
            unpack(blob)


@pytest.mark.parametrize("case", VECTORS["programs"], ids=lambda case: case["rule"])
def test_programs(case: dict[str, Any]) -> None:
    program = bytes.fromhex(case["program"])
    if case["accepted"]:
        check_program(program)
    else:
        with pytest.raises(CodecError):
            check_program(program)
