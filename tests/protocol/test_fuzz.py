"""Every decoder of bytes that a peer chooses, on damaged copies of good ones, for as long as there is time.

``FUZZ_S`` are the seconds for each. What breaks one is printed as hex, and belongs into that decoder's own
test. The files of a bundle but ONNX's are opened by their runtime alone, in a process of its own.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.edge.harness import make_bundle
from tests.protocol.wire.test_program import model
from tests.vectors.frame_samples import every_message

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode, top_k
from sedge_protocol.errors import RemoteError
from sedge_protocol.wire.bundle import unpack
from sedge_protocol.wire.frame import open_frame
from sedge_protocol.wire.messages import KINDS, decode_body, encode_body
from sedge_protocol.wire.policy import HEAD_BYTES, Policy, unsealed
from sedge_protocol.wire.program import check_program
from sedge_protocol.wire.update import decode_arrays, decode_update

FUZZ_S = float(os.environ.get("FUZZ_S", "20"))
VECTORS = json.loads((Path(__file__).parents[1] / "vectors/frames.json").read_text())
SIZE = 300
EXTREMES = [bytes([value]) * width for value in (0x00, 0x7F, 0x80, 0xFF) for width in (1, 2, 4, 8)]


def vectors() -> Iterable[bytes]:
    """Coded vectors of ``SIZE`` elements."""
    theta = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)
    for vector in (SparseVector(SIZE, None, theta), top_k(theta, 30)):
        for values in ValueCoding:
            for compression in Compression:
                yield encode(vector, values, compression)


def policies() -> Iterable[bytes]:
    """A policy under a key and a signature that are not checked here."""
    policy = Policy(
        run="run", version=1, bundles=(bytes(32),), last_round=9, tasks=("train",), local_epochs=1,
        learning_rate=0.1,
    )  # fmt: skip
    yield bytes(HEAD_BYTES) + msgspec.msgpack.encode(policy)


def read_body(data: bytes) -> None:
    """The first byte chooses the kind."""
    kinds = sorted(KINDS.values())
    decode_body(kinds[data[0] % len(kinds)] if data else kinds[0], data[1:])


def bodies() -> Iterable[bytes]:
    """One of every message."""
    kinds = sorted(KINDS.values())
    for message, _ in every_message():
        yield bytes([kinds.index(KINDS[type(message)])]) + encode_body(message)


def hexes(table: str, field: str) -> list[bytes]:
    """A field of a table of vectors."""
    return [bytes.fromhex(row[field]) for row in VECTORS[table]]


TARGETS: dict[str, tuple[Callable[[bytes], object], Callable[[], Iterable[bytes]]]] = {
    "frame": (lambda data: open_frame(data, "topic", None), lambda: hexes("frames", "sealed")),
    "body": (read_body, bodies),
    "vector": (lambda data: decode(data, SIZE).dense(), vectors),
    "update": (decode_update, lambda: hexes("updates", "blob")),
    "arrays": (decode_arrays, lambda: hexes("updates", "blob")),
    "program": (check_program, lambda: [model().SerializeToString()]),
    "bundle": (unpack, lambda: [make_bundle(program=b"a program")]),
    "policy": (lambda data: unsealed(data).policy(), policies),
}


def damaged(rng: random.Random, corpus: list[bytes]) -> bytes:
    """A good one, changed in a few places."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + rng.randrange(9)] = rng.choice(EXTREMES)
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                del data[at : at + rng.randrange(1, 65)]
            case 4:
                other = rng.choice(corpus)
                data[at:] = other[rng.randrange(len(other)) :]
            case _:
                del data[at:]
    return bytes(data)


def fuzz(target: str, corpus: list[bytes], read: Callable[[bytes], object]) -> None:
    """Read damaged copies of the corpus for ``FUZZ_S``: each is taken, or refused in one line."""
    seed = random.randrange(2**32)
    rng, refused, tries, until = random.Random(seed), 0, 0, time.monotonic() + FUZZ_S
    while tries < 1000 or time.monotonic() < until:
        data, tries = damaged(rng, corpus), tries + 1
        try:
            read(data)
        except RemoteError as exc:
            refused += 1
            assert str(exc) and "\n" not in str(exc), data.hex()
        except Exception as exc:
            raise AssertionError(f"{target} of seed {seed}: {data.hex()}") from exc
    assert refused > tries // 10


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_damaged_bytes_raise_anything_but_one_clear_error(target: str) -> None:
    read, good = TARGETS[target]
    corpus = list(good())
    for sound in corpus if target != "frame" else ():  # frames have keys of their own
        read(sound)
    fuzz(target, corpus, read)
