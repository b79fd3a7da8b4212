"""The update blob, both ways and broken."""

import struct
from dataclasses import dataclass

import msgspec
import pytest

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.update import (
    MAX_REPORT_BYTES,
    Metrics,
    Report,
    decode_update,
    encode_update,
)

REPORT = Report(
    run="digits",
    round=3,
    task="train",
    layout_hash=bytes(range(32)),
    model_hash=bytes(32),
    patch_hash=b"\x01" * 32,
    num_examples=600,
    before=Metrics(2.3, 0.1, 100),
    after=Metrics(0.25, 0.9375, 100),
    train_loss=0.5,
    steps=95,
    seconds=12.5,
)
NAN, INFINITY = float("nan"), float("inf")


@dataclass(frozen=True)
class Change:
    """One field of the report, and what the refusal says."""

    field: str
    value: object
    message: str


def blob_of(fields: object, payload: bytes = b"") -> bytes:
    header = msgspec.msgpack.encode(fields)
    return struct.pack("<I", len(header)) + header + payload


def fields(**changes: object) -> dict[str, object]:
    return {**msgspec.to_builtins(REPORT, builtin_types=(bytes,)), **changes}


def test_what_a_report_may_leave_out() -> None:
    assert decode_update(blob_of(fields()))[0] == REPORT
    more = msgspec.structs.replace(REPORT, mix=0.25, sparse=Metrics(0.5, 0.75, 100))
    for report in (more, msgspec.structs.replace(more, mix=0.0), REPORT):
        assert decode_update(encode_update(report, b""))[0] == report
    assert msgspec.msgpack.decode(encode_update(REPORT, b"")[4:]) == fields()
    assert {"mix", "sparse"}.isdisjoint(fields())


LENGTH = len(encode_update(REPORT, b"")) - 4


@pytest.mark.parametrize("length", [0, 1, LENGTH - 1, LENGTH + 1, MAX_REPORT_BYTES + 1, 2**32 - 1])
def test_a_length_that_is_not_the_header_s(length: int) -> None:
    blob = struct.pack("<I", length) + encode_update(REPORT, b"")[4:]
    with pytest.raises(CodecError, match="update"):
        decode_update(blob)


def test_the_largest_report_is_taken() -> None:
    padding = MAX_REPORT_BYTES - len(msgspec.msgpack.encode(fields(padding=""))) - 2
    largest = blob_of(fields(padding="x" * padding))
    assert len(largest) == 4 + MAX_REPORT_BYTES
    assert decode_update(largest)[0] == REPORT
    with pytest.raises(CodecError, match=f"header_len: {MAX_REPORT_BYTES + 1}"):
        decode_update(blob_of(fields(padding="x" * (padding + 1))))


# Limits are in the tables that test_spec_command.py compares.
CHANGES = [
    Change("run", "digits\n", "run"),
    Change("seconds", NAN, "seconds"),
    Change("seconds", INFINITY, "seconds: inf, expected at most 3.4028235e\\+38"),
    Change("train_loss", NAN, "train_loss: nan, expected"),
    Change("train_loss", -INFINITY, "train_loss: -inf, expected"),
    # Of the sum of three of 1.8e308 there is no mean.
    Change("train_loss", 3.5e38, "train_loss: 3.5e"),
    Change("before", {"loss": NAN, "metric": 0.5, "num_examples": 1}, "before.loss: nan"),
    Change("after", {"loss": INFINITY, "metric": 0.5, "num_examples": 1}, "after.loss: inf"),
    Change("before", {"loss": 1.0, "metric": NAN, "num_examples": 1}, "metric"),
    Change("after", {"loss": 1.0, "metric": 3.5e38, "num_examples": 1}, "after.metric: 3.5e"),
    Change("mix", NAN, "mix"),
    Change("sparse", {"loss": NAN, "metric": 0.5, "num_examples": 1}, "sparse.loss: nan"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: f"{c.field}={c.value}"[:40])
def test_a_report_that_is_not_as_it_should_be(change: Change) -> None:
    with pytest.raises(CodecError, match=change.message):
        decode_update(blob_of(fields(**{change.field: change.value})))


@pytest.mark.parametrize(
    "header",
    [
        b"\xc0",
        b"\x80",
        b"\x91" * 4000 + b"\xc0",
        b"\x81\xa1z" + b"\x91" * 4000 + b"\xc0",
        b"\x81\xa3run\xa2\xff\xfe",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1z\xc6\xff\xff\xff\xff",
    ],
)
def test_a_header_that_is_no_report(header: bytes) -> None:
    with pytest.raises(CodecError, match="update"):
        decode_update(struct.pack("<I", len(header)) + header)
