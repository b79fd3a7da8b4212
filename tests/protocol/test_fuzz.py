"""Every decoder of bytes that a peer chooses, on a thousand damaged copies of good ones.

Among the slow tests it goes on for as long as there is time: ``FUZZ_S`` seconds for each. What breaks one
is printed as hex, and belongs into that decoder's own test. The files of a bundle but ONNX's are opened by
their runtime alone, in a process of its own.
"""

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto
from tests.edge.harness import make_bundle
from tests.protocol.absurd import damaged
from tests.protocol.wire.test_program import model
from tests.vectors.frame_samples import every_message

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode, top_k
from sedge_protocol.errors import RemoteError
from sedge_protocol.wire.bundle import unpack
from sedge_protocol.wire.frame import Kind, open_frame
from sedge_protocol.wire.messages import KINDS, decode_body, encode_body
from sedge_protocol.wire.operators import OPERATORS
from sedge_protocol.wire.policy import HEAD_BYTES, Policy, unsealed
from sedge_protocol.wire.program import check_program
from sedge_protocol.wire.topics import blob
from sedge_protocol.wire.update import decode_arrays, decode_update

FUZZ_S = float(os.environ.get("FUZZ_S", "20"))
VECTORS = json.loads((Path(__file__).parents[1] / "vectors/frames.json").read_text())
SIZE, BLOB = 300, blob("home", bytes(16))


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


def read_frame(data: bytes) -> None:
    """Without a key only chunks are taken."""
    assert open_frame(data, BLOB, None).kind is Kind.CHUNK


def read_body(data: bytes) -> None:
    """The first byte chooses the kind."""
    kinds = sorted(KINDS.values())
    kind = kinds[data[0] % len(kinds)] if data else kinds[0]
    assert KINDS[type(decode_body(kind, data[1:]))] is kind


def read_program(data: bytes) -> None:
    """What passes, onnx reads the same way, or not at all (packed numbers)."""
    check_program(data)
    with contextlib.suppress(DecodeError):
        graph = ModelProto.FromString(data).graph
        assert {node.op_type for node in graph.node} <= OPERATORS
        assert not any(tensor.external_data for tensor in graph.initializer)


def bodies() -> Iterable[bytes]:
    """One of every message."""
    kinds = sorted(KINDS.values())
    for message, _ in every_message():
        yield bytes([kinds.index(KINDS[type(message)])]) + encode_body(message)


def hexes(table: str, field: str) -> list[bytes]:
    return [bytes.fromhex(row[field]) for row in VECTORS[table]]


TARGETS: dict[str, tuple[Callable[[bytes], object], Callable[[], Iterable[bytes]]]] = {
    "frame": (read_frame, lambda: hexes("frames", "sealed")),
    "body": (read_body, bodies),
    "vector": (lambda data: decode(data, SIZE).dense(), vectors),
    "update": (decode_update, lambda: hexes("updates", "blob")),
    "arrays": (decode_arrays, lambda: hexes("updates_with_arrays", "blob")),
    "program": (read_program, lambda: [model().SerializeToString()]),
    "bundle": (unpack, lambda: [make_bundle(program=b"a program")]),
    "policy": (lambda data: unsealed(data).policy(), policies),
}


def fuzz(
    target: str, corpus: list[bytes], read: Callable[[bytes], object], seconds: float = FUZZ_S
) -> None:
    """Read damaged copies of the corpus for so long: each is taken, or refused in one line."""
    seed = random.randrange(2**32) if seconds else 0
    rng, refused, tries, until = random.Random(seed), 0, 0, time.monotonic() + seconds
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


@pytest.mark.parametrize("seconds", [0, pytest.param(FUZZ_S, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", TARGETS)
def test_no_damaged_bytes_raise_anything_but_one_clear_error(target: str, seconds: float) -> None:
    read, good = TARGETS[target]
    corpus = list(good())
    for sound in corpus if target != "frame" else ():  # frames have keys of their own
        read(sound)
    fuzz(target, corpus, read, seconds)
