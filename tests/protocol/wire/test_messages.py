"""Messages: both ways, and what is ignored. Limits are in the tables that test_spec_command.py compares."""

import tracemalloc
from typing import get_args

import pytest

from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.errors import FrameError
from sedge_protocol.wire import messages
from sedge_protocol.wire.frame import MAX_BODY_BYTES, Kind
from sedge_protocol.wire.messages import (
    KINDS,
    POINT_BYTES,
    PROOF_BYTES,
    Message,
    Order,
    decode_body,
    encode_body,
)
from sedge_protocol.wire.settings import MAX_SETTINGS_BYTES
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import MAX_INLINE_BYTES, Manifest, describe
from sedge_protocol.wire.work import Codec, Step, Work

NONCE, HASH = bytes(range(16)), bytes(range(32))
BLOB = describe(b"blob", 4096)
LARGEST = Manifest(HASH, 2**30, 2**18, bytes(4096 * 16))
ORDER = Order(run="r", round=1, task="train", bundle=BLOB, model=BLOB, model_hash=HASH)

# Each message at its least and at its most.
TABLE: list[Message] = [
    messages.Hello(NONCE, ""),
    messages.Hello(
        NONCE, "v" * 64, ("b" * 64,) * 16, ("zstd", "zlib"), ("c" * 64,) * 16, 2**40, 2**40, 2**40
    ),
    messages.Welcome(bytes(16), "0.1.0"),
    messages.Welcome(bytes(16), "0.1.0", settings=bytes(MAX_SETTINGS_BYTES)),
    messages.Goodbye(NONCE),
    ORDER,
    Order(
        run="a" * 48,
        round=2**31,
        task="evaluate",
        bundle=LARGEST,
        model=LARGEST,
        model_hash=HASH,
        steps=(Step(HASH, BLOB),) * messages.MAX_STEPS,
        patch=bytes(MAX_INLINE_BYTES),
        patch_blob=BLOB,
        patch_hash=HASH,
        work=Work(
            keep=("n" * 256,) * 50,
            upload=False,
            training=Training(1000, 1000.0, 0.999, 1e6, "fill"),
        ),
        codec=Codec(ValueCoding.INT8, 1e-9, 1e6, Compression.NONE, False),
        context=HASH,
        seed=2**63 - 1,
    ),
    messages.Cancel("r", 0, ""),
    messages.Cancel("r", 2**31, "ä" * 1000),
    messages.Decline("r", 1, "DataError"),
    messages.Decline("r", 1, "x" * 64, "y" * 1000),
    messages.Offer("r", 1, BLOB, 0),
    messages.Offer("r", 1, LARGEST, 2**40, bytes(MAX_INLINE_BYTES)),
    messages.Have(0, b"", 1),
    messages.Have(2**40, bytes(512), 64),
    messages.Committed("r", 1, HASH),
    messages.Committed("r", 1, HASH, True),
    messages.Reject("r", 1, HASH, "stale", "detail"),
    messages.Busy(0),
    messages.Busy(2**40, "disk full"),
    messages.Get("r", 1, bytes(512)),
    messages.Refusal("version"),
    messages.Refusal("size", "too large"),
    messages.Join(bytes(POINT_BYTES), "d", bytes(PROOF_BYTES)),
    messages.Join(bytes(POINT_BYTES), "d" * 48, bytes(PROOF_BYTES), "v" * 64),
    messages.Joined(NONCE, "pending"),
    messages.Joined(NONCE, "accepted", "d" * 48, bytes(PROOF_BYTES), ("t" * 100,) * 32),
    messages.Joined(NONCE, "refused", detail="x" * 1000),
    messages.Joined(NONCE, "accepted", "d", certificate=bytes(2048)),
    messages.Renew(bytes(POINT_BYTES)),
]


def _kind(message: Message) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", TABLE, ids=_kind)
def test_a_message_goes_both_ways(message: Message) -> None:
    body = encode_body(message)
    assert len(body) <= MAX_BODY_BYTES
    found = decode_body(KINDS[type(message)], body)
    assert found == message
    assert type(found) is type(message)
    assert encode_body(found) == body


def test_the_table_knows_every_message_and_every_kind() -> None:
    assert {type(message) for message in TABLE} == set(get_args(Message)) == set(KINDS)
    assert set(KINDS.values()) == set(Kind) - {Kind.CHUNK}


@pytest.mark.parametrize("depth", [100, 1000, 10_000, MAX_BODY_BYTES - 100])
@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1k"])
def test_deep_nesting_is_refused_or_skipped(depth: int, opener: bytes) -> None:
    """A shallow unknown value is skipped; a deep one must not reach the end of our stack."""
    depth = depth // len(opener)
    body = b"\x82\xa5later" + opener * depth + b"\xc0" + b"\xa5nonce\xc4\x10" + NONCE
    if depth <= 100:
        assert decode_body(Kind.GOODBYE, body) == messages.Goodbye(NONCE)
        return
    try:
        assert decode_body(Kind.GOODBYE, body) == messages.Goodbye(NONCE)
    except FrameError as exc:
        assert "recursion" in str(exc)


@pytest.mark.parametrize("key", [b"\xa8backends", b"\xa5later", b"\xa5nonce", b"\xa7version"])
@pytest.mark.parametrize(
    "bomb", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
)
def test_lengths_that_are_not_there_take_no_memory(key: bytes, bomb: bytes) -> None:
    body = b"\x83" + key + bomb + bytes(100)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            decode_body(Kind.HELLO, body)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
