"""A download on a link that loses what it carries: what is asked for, and how soon again."""

import numpy as np
import pytest

from sedge_protocol.wire.transfer import (
    RETRY_FIRST_S,
    RETRY_MAX_S,
    SILENCE_S,
    Fetch,
    describe,
    from_bitmap,
)

BLOB = np.random.default_rng(1).bytes(10 * 2**12)
MANIFEST = describe(BLOB, 2**12)
SOON_S = SILENCE_S + RETRY_FIRST_S


class Played:
    """A download, and the clock."""

    def __init__(self) -> None:
        self.fetch, self.now = Fetch(MANIFEST, set(), np.random.default_rng(0)), 0.0
        self.fetch.connected(self.now)

    @property
    def wait(self) -> float:
        """How long until the next request."""
        at = self.fetch.timer()
        assert at is not None and (at <= self.now or self.fetch.poll(self.now) is None)
        return at - self.now

    def ask(self, times: int = 1) -> set[int]:
        """Let the next requests go. Returns the chunks that the last one names."""
        asked = b""
        for _ in range(times):
            self.now += self.wait
            asked = self.fetch.poll(self.now) or b""
        return from_bitmap(asked, MANIFEST.count)

    def come(self, index: int, after: float = 0.1) -> None:
        self.now += after
        offset, length = MANIFEST.span(index)
        assert self.fetch.chunk(index, BLOB[offset : offset + length], self.now)

    def broken(self, seconds: float) -> None:
        self.fetch.disconnected()
        assert self.fetch.timer() is None
        self.now += seconds
        self.fetch.connected(self.now)


def test_first_one_chunk_is_asked_for_then_all() -> None:
    played = Played()
    assert played.ask() == {0} == played.ask()
    played.come(0)
    assert played.wait == 0 and played.ask() == set(range(1, 10))
    played.come(1)
    assert played.wait > 0 and played.ask() == set(range(2, 10))
    played.broken(0.0)
    assert played.wait == 0 and played.ask() == {2}


def test_a_slow_link_is_left_four_times_as_long_as_a_chunk_took() -> None:
    """And no longer at once when one comes sooner."""
    played = Played()
    played.ask()
    played.come(0, after=10.0)
    assert played.ask() and 40 <= played.wait <= 40 + RETRY_FIRST_S
    waits = []
    for index in range(1, 6):
        played.come(index, after=1.0)
        waits.append(played.wait)
    assert waits == pytest.approx([20, 10, 5, 4, 4])
    played.come(6, after=100.0)
    assert played.wait == RETRY_MAX_S


@pytest.mark.parametrize("slow", [False, True])
def test_after_a_new_connection_a_request_is_repeated_soon(slow: bool) -> None:
    """Neither what the last one was like nor how long there was none counts."""
    played = Played()
    played.ask(1 if slow else 10)
    if slow:
        played.come(0, after=10.0)
        played.ask()
    assert played.wait > SOON_S
    played.broken(50.0)
    (first,) = played.ask()
    assert played.wait <= SOON_S
    played.come(first)
    assert played.ask() and played.wait <= SOON_S


def test_a_sender_that_comes_online_is_asked_again_soon() -> None:
    played = Played()
    played.ask(10)
    assert played.wait > SOON_S
    played.fetch.woken(played.now)
    assert played.wait == SILENCE_S  # the answer may be on its way
    played.now += 5.0
    played.fetch.woken(played.now)
    assert played.wait < 0 and played.ask() == {0} and played.wait <= SOON_S
    played.come(0)  # which did not take as long as the sender was away
    assert len(played.ask()) == 9 and played.wait <= SOON_S
    played.come(1)
    played.fetch.woken(played.now)
    assert played.wait == SILENCE_S  # nothing is unanswered


@pytest.mark.parametrize("index", [0, 3])
def test_while_chunks_come_for_others_nothing_is_asked(index: int) -> None:
    played = Played()
    played.ask()
    played.broken(0.0)
    played.come(index)
    assert played.wait == SILENCE_S


def test_a_chunk_that_comes_late_ends_the_long_pauses() -> None:
    played = Played()
    played.ask(10)
    played.come(3)
    assert len(played.ask()) == 9 and played.wait <= RETRY_MAX_S + RETRY_FIRST_S
