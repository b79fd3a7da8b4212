"""How much one sender may say: no device crowds out the others, or fills the log.

A token bucket of messages for each device, far above what an honest one needs: a round takes it some five
and its chunks, and what 500 chunks of 64 KiB fill is a link of 260 Mbit/s. What a message costs is read off
its length and its kind, before its MAC is looked at. A message above the bucket is as good as lost on
its way: who meant it says it again. Strangers, the revoked among them, are not heard at all.

Beside it a number of lines in the log, for each device and for all strangers together.
"""

import logging
from collections.abc import Iterable
from typing import TypeVar

from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.frame import HEADER, Kind

E = TypeVar("E")

RATE = 500.0  # a second, for as long as one likes
BURST = 2000.0  # so many at once
# The bytes of a body that cost as much as a message: their MAC takes as long.
UNIT_BYTES = 2**16
# A HELLO may take a transaction and is answered with the open orders; one a connection is what is needed.
# An OFFER or a GET reads rows or files. A GET also pays for each chunk that it queues.
COST: dict[int, int] = {Kind.HELLO: 100, Kind.OFFER: 5, Kind.GET: 5}
_KIND = 3
WARN_EVERY_S = 60.0
# Lines of log in so many seconds; an honest device causes a few a round.
LINES, LINES_S = 20, 60.0


def cost(payload: bytes) -> int:
    """What a frame takes from its sender's bucket, by its length and the kind that it claims."""
    units = max(1, -(-(len(payload) - HEADER.size) // UNIT_BYTES))
    return units if len(payload) <= _KIND else units - 1 + COST.get(payload[_KIND], 1)


class TokenBucket:
    """What is left of one sender's bucket."""

    def __init__(self) -> None:
        self._left = BURST
        self._at = self._warn_at = 0.0

    def spend(self, now: float, cost: int = 1) -> bool:
        """Whether a message of this cost may be looked at."""
        self._left = min(BURST, self._left + RATE * max(0.0, now - self._at))
        self._at = max(self._at, now)
        if self._left < cost:
            return False
        self._left -= cost
        return True

    def charge(self, cost: int) -> None:
        """Take for what has been done already, below nothing if need be."""
        self._left -= cost

    def warns(self, now: float) -> bool:
        """Whether it is time to say that messages are being dropped: once a minute."""
        if now < self._warn_at:
            return False
        self._warn_at = now + WARN_EVERY_S
        return True


class LogQuota:
    """Which lines get into the log, by who causes them; how many do not is said in one."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[float, int]] = {}  # since when, how many
        self._over: dict[str, int] = {}  # whose lines are being left out: how many

    def admit(self, sender: str, effects: Iterable[E], now: float) -> list[E]:
        """The effects without the notes that are too many."""
        return [e for e in effects if not isinstance(e, Note) or self._admits(sender, now)]

    def _admits(self, sender: str, now: float) -> bool:
        since, count = self._lines.get(sender, (now, 0))
        if sender not in self._over and now >= since + LINES_S:
            since, count = now, 0
        self._lines[sender] = since, count + 1
        if count < LINES:
            return True
        self._over[sender] = self._over.get(sender, 0) + 1
        return False

    def poll(self, now: float) -> list[Note]:
        """What was left out, of those whose time is over."""
        found: list[Note] = []
        for sender in [s for s in self._over if now >= self._lines[s][0] + LINES_S]:
            left_out = self._over.pop(sender)
            del self._lines[sender]
            text = f"{sender}: {left_out} more lines like these in {LINES_S:.0f} s were left out"
            found.append(Note(logging.WARNING, text))
        return found

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        return min((self._lines[sender][0] + LINES_S for sender in self._over), default=None)
