"""Frames: every prefix, every flipped byte, a longer header, and start counts."""

import json
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sedge_protocol.errors import FrameError, LocalError
from sedge_protocol.wire.frame import (
    EARLIEST_CLOCK_S,
    HEADER,
    LATEST_CLOCK_S,
    MAX_AHEAD_S,
    MAX_BODY_BYTES,
    MAX_INCARNATION,
    Frame,
    Kind,
    latest_incarnation,
    next_incarnation,
    open_frame,
    seal,
)
from sedge_protocol.wire.topics import blob, up

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
UP = up("home", "pi-1")
BLOB = blob("home", bytes(16))
CHUNK = Frame(Kind.CHUNK, b"chunk", 7, 0, b"t" * 16, 3)


@dataclass(frozen=True)
class Sealed:
    name: str
    topic: str
    key: bytes | None
    data: bytes


def every_kind(group: str = "frames") -> list[Sealed]:
    path = Path(__file__).parents[2] / "vectors" / "frames.json"
    found = json.loads(path.read_text())[group]
    cases = {(case["kind"], case["key"], len(case["sealed"])): case for case in found}
    return [
        Sealed(
            case["name"],
            case["topic"],
            None if case["key"] is None else bytes.fromhex(case["key"]),
            bytes.fromhex(case["sealed"]),
        )
        for case in cases.values()
    ]


def _name(sealed: Sealed) -> str:
    return sealed.name


SOME = [sealed for sealed in every_kind() if sealed.key is None or "GOODBYE" in sealed.name]
LONGER_HEADER = next(s for s in every_kind("readable") if "72 bytes" in s.name)


def opens(sealed: Sealed, data: bytes) -> Frame | None:
    """The frame, or None where it is refused; anything else is an error of the test."""
    try:
        return open_frame(data, sealed.topic, sealed.key)
    except FrameError:
        return None


@pytest.mark.parametrize("sealed", SOME, ids=_name)
def test_every_prefix_fails_the_same_way(sealed: Sealed) -> None:
    for end in range(len(sealed.data)):
        with pytest.raises(FrameError, match=rf"^frame of {end} bytes, ") as refusal:
            open_frame(sealed.data[:end], sealed.topic, sealed.key)
        assert type(refusal.value) is FrameError


@pytest.mark.parametrize("sealed", SOME, ids=_name)
def test_every_changed_byte_is_refused(sealed: Sealed) -> None:
    """Each byte takes every other value in the header, four in the body."""
    whole = open_frame(sealed.data, sealed.topic, sealed.key)
    slipped = 0
    for position in range(len(sealed.data)):
        for change in range(1, 256) if position < HEADER.size else (1, 0x80, 0x55, 0xFF):
            damaged = bytearray(sealed.data)
            damaged[position] ^= change
            found = opens(sealed, bytes(damaged))
            if found is not None:
                slipped += 1
                assert (found.kind, len(found.body)) == (whole.kind, len(whole.body))
    # Without a MAC, what slips through is for the chunk's digest to find.
    assert (slipped > 0) == (sealed.key is None)


@pytest.mark.parametrize("body_len", [MAX_BODY_BYTES + 1, 2**31, 2**32 - 1])
def test_an_oversize_body_is_refused_before_it_is_looked_at(body_len: int) -> None:
    sealed = bytearray(seal(CHUNK, UP, KEY))
    sealed[36:40] = body_len.to_bytes(4, "little")
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match=f"body_len: {body_len}, limit"):
            open_frame(bytes(sealed), UP, KEY)
        assert tracemalloc.get_traced_memory()[1] < MAX_BODY_BYTES
    finally:
        tracemalloc.stop()


def test_a_longer_header_of_a_later_minor_version_is_read() -> None:
    """The appended fields stand before the body, and the MAC covers them with it."""
    extra = b"appended"
    stretched = bytearray(seal(replace(CHUNK, body=extra + CHUNK.body), UP, KEY))
    stretched[6:8] = (HEADER.size + len(extra)).to_bytes(2, "little")
    stretched[36:40] = len(CHUNK.body).to_bytes(4, "little")
    with pytest.raises(FrameError, match="MAC"):
        open_frame(bytes(stretched), UP, KEY)
    longer = LONGER_HEADER
    assert len(longer.data) == 72 + len(open_frame(longer.data, longer.topic, longer.key).body)
    for position in range(HEADER.size, 72):
        damaged = bytearray(longer.data)
        damaged[position] ^= 1
        with pytest.raises(FrameError, match="MAC"):
            open_frame(bytes(damaged), longer.topic, longer.key)


def test_our_own_mistakes_are_told() -> None:
    with pytest.raises(LocalError, match="limit"):
        seal(Frame(Kind.ORDER, bytes(MAX_BODY_BYTES + 1)), UP, KEY)
    for kind in set(Kind) - {Kind.CHUNK}:
        with pytest.raises(LocalError, match="needs a key"):
            seal(Frame(kind, b""), BLOB, None)


@pytest.mark.parametrize(
    ("last", "clock_s", "expected"),
    [
        (0, 1_800_000_000, 1_800_000_000),
        (1_800_000_000, 5, 1_800_000_001),
        (7, LATEST_CLOCK_S, LATEST_CLOCK_S),
        (7, LATEST_CLOCK_S + 1, 8),
        (7, 7_300_000_000, 8),
        (MAX_INCARNATION - 1, 5, MAX_INCARNATION),
        (MAX_INCARNATION, 5, MAX_INCARNATION),
        (MAX_INCARNATION + 1, 5, 5),
    ],
)
def test_a_start_count_grows_and_fits_a_frame(last: int, clock_s: int, expected: int) -> None:
    incarnation = next_incarnation(last, clock_s)
    assert incarnation == expected
    sealed = seal(Frame(Kind.GOODBYE, b"", incarnation, 1), UP, KEY)
    assert open_frame(sealed, UP, KEY).incarnation == incarnation


@pytest.mark.parametrize(
    ("clock_s", "latest"),
    [
        (1, LATEST_CLOCK_S),  # not set: any that a clock can give
        (EARLIEST_CLOCK_S - 1, LATEST_CLOCK_S),
        (1_800_000_000.5, 1_800_000_000 + MAX_AHEAD_S),
        (LATEST_CLOCK_S, MAX_INCARNATION),
        (2**32, LATEST_CLOCK_S),
    ],
)
def test_the_latest_boot_that_is_believed(clock_s: float, latest: int) -> None:
    assert latest_incarnation(clock_s) == latest
