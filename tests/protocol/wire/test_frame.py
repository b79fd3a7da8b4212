"""Frames: every prefix, every flipped byte, a longer header, and start counts."""

import tracemalloc
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.protocol.test_frame_vectors import VECTORS, Case, opened

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

KEY = bytes(range(32))
UP = up("home", "pi-1")
BLOB = blob("home", bytes(16))
CHUNK = Frame(Kind.CHUNK, b"chunk", 7, 0, b"t" * 16, 3)


SOME = [c for c in VECTORS["frames"] if c["key"] is None or "GOODBYE" in c["name"]]
LONGER_HEADER = next(case for case in VECTORS["readable"] if "72 bytes" in case["name"])


@pytest.mark.parametrize("case", SOME, ids=lambda case: case["name"])
def test_every_prefix_fails_the_same_way(case: Case) -> None:
    sealed = bytes.fromhex(case["sealed"])
    for end in range(len(sealed)):
        with pytest.raises(FrameError, match=rf"^frame of {end} bytes, ") as refusal:
            opened(case, sealed[:end])
        assert type(refusal.value) is FrameError


@pytest.mark.parametrize("case", SOME, ids=lambda case: case["name"])
def test_every_changed_byte_is_refused(case: Case) -> None:
    """Each byte takes every other value in the header, four in the body."""
    sealed, whole = bytes.fromhex(case["sealed"]), opened(case)
    slipped = 0
    for position in range(len(sealed)):
        for change in range(1, 256) if position < HEADER.size else (1, 0x80, 0x55, 0xFF):
            damaged = bytearray(sealed)
            damaged[position] ^= change
            with suppress(FrameError):
                found = opened(case, bytes(damaged))
                slipped += 1
                assert (found.kind, len(found.body)) == (whole.kind, len(whole.body))
    # Without a MAC, what slips through is for the chunk's digest to find.
    assert (slipped > 0) == (case["key"] is None)


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
    longer = bytes.fromhex(LONGER_HEADER["sealed"])
    assert len(longer) == 72 + len(opened(LONGER_HEADER).body)
    for position in range(HEADER.size, 72):
        damaged = bytearray(longer)
        damaged[position] ^= 1
        with pytest.raises(FrameError, match="MAC"):
            opened(LONGER_HEADER, bytes(damaged))


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
