"""An upload on a link that loses what it carries: when its chunks are too large, and when it is offered."""

import numpy as np
import pytest

from sedge_protocol.wire.transfer import SILENCE_S, Upload, describe, to_bitmap

MANIFEST = describe(bytes(10 * 2**14), 2**14)


class Played:
    """An upload, of which chunks arrive only if told so."""

    def __init__(self) -> None:
        self.upload, self.now = Upload(MANIFEST, np.random.default_rng(0)), 0.0
        self.sent: list[int | None] = []
        self.arrived: set[int] = set()
        self.upload.connected(self.now)

    def offer(self) -> float:
        """Let the next offer go. Returns how long the upload then waits for an answer."""
        self.now = self.upload.timer() or self.now
        assert self.upload.poll(self.now) == [None]
        return (self.upload.timer() or 0.0) - self.now

    def report(self, number: int, credit: int) -> None:
        bits = to_bitmap(self.arrived, MANIFEST.count)
        self.upload.receive(number, bits, credit, self.now)

    def play(self, step: str) -> None:
        match step:
            case "offered":  # and answered
                self.offer()
                self.report(self.upload.number, 2)
            case "sent":
                self.sent = self.upload.poll(self.now)
                assert self.sent
            case "come":
                self.arrived.update(index for index in self.sent if index is not None)
                self.report(0, 4)
            case "told":  # that nothing has come since
                self.report(0, 4)
            case _:  # broken
                self.upload.disconnected()
                self.upload.connected(self.now)


@pytest.mark.parametrize(
    ("steps", "twice"),
    [
        ("offered sent offered", False),
        ("offered sent offered sent offered", True),
        ("offered sent offered offered offered", False),
        ("offered sent broken offered sent broken", True),
        ("offered sent broken broken broken", False),
        ("offered sent offered sent broken", True),
        ("offered sent come sent broken offered sent broken", False),
        ("offered sent come sent broken offered sent broken offered sent broken", True),
        ("offered sent broken offered sent come sent offered", False),
        ("offered sent come offered sent offered", False),
        ("offered sent told sent offered", False),
    ],
)
def test_chunks_are_too_large_if_all_are_lost_twice_in_a_row(steps: str, twice: bool) -> None:
    """By connections or by offers; where nothing was sent nothing was lost, and progress begins anew."""
    played = Played()
    for step in steps.split():
        assert not played.upload.wants_smaller_chunks
        played.play(step)
    assert played.upload.wants_smaller_chunks == twice


@pytest.mark.parametrize("news", ["broken", "woken", "come"])
def test_after_news_an_offer_is_repeated_soon(news: str) -> None:
    """One that stays unanswered is repeated ever later."""
    played = Played()
    waits = [played.offer() for _ in range(10)]
    assert waits[0] < SILENCE_S + 1 and waits[-1] > SILENCE_S + 5
    if news == "woken":
        played.upload.woken(played.now)
    else:
        played.sent = [0]
        played.play(news)
    assert played.offer() < SILENCE_S + 1


def test_a_new_connection_ends_what_was_put_off() -> None:
    played = Played()
    played.offer()
    played.upload.busy(60.0, played.now)
    assert played.upload.put_off
    played.play("broken")
    assert not played.upload.put_off and played.upload.timer() == played.now
