"""Limits the rate of messages and log lines, so that no device can crowd out the others or fill the log.

Each device has a token bucket of messages, far larger than an honest device needs: a round takes about five
messages and the chunks, and 500 chunks of 64 KiB a second would fill a link of 260 Mbit/s. A message's cost
depends on its length and kind, and is charged before its MAC is checked. If the bucket has too little left
for a message, the message is dropped. To its sender it looks like a message lost in transit, which it
repeats. Messages from unknown senders and revoked devices are always dropped.

Each device has a quota of log lines; all unknown senders share one quota.
"""

import logging
from collections.abc import Iterable
from typing import TypeVar

from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.frame import HEADER, Kind, asks

E = TypeVar("E")

RATE = 500.0  # sustained messages per second
BURST = 2000.0  # messages in a burst
# This many body bytes cost as much as one message: checking their MAC takes as long.
UNIT_BYTES = 2**16
# A HELLO may take a transaction and is answered with the open orders, and one per connection is enough. An
# OFFER or a GET reads rows or files, and a JOIN runs a key agreement. A GET also pays for each chunk that
# it queues.
COST: dict[int, int] = {Kind.HELLO: 100, Kind.OFFER: 5, Kind.GET: 5, Kind.JOIN: 10}
# A doctor's HELLO changes nothing and is answered from memory. A doctor sends one or two for each message
# size that it tests.
DOCTOR_COST = 5
_KIND = 3
WARN_EVERY_S = 60.0
# At most LINES log lines in LINES_S seconds; an honest device causes a few per round.
LINES, LINES_S = 20, 60.0


def cost(payload: bytes) -> int:
    """Return what a frame costs its sender's bucket, based on its length and the kind it claims to be."""
    units = max(1, -(-(len(payload) - HEADER.size) // UNIT_BYTES))
    if len(payload) <= _KIND:
        return units
    return units - 1 + (DOCTOR_COST if asks(payload) else COST.get(payload[_KIND], 1))


class TokenBucket:
    """The token bucket of one sender."""

    def __init__(self) -> None:
        self._left = BURST
        self._dropped = 0.0  # number of dropped messages, which decays at the bucket's rate
        self._at = self._warn_at = 0.0

    def spend(self, now: float, cost: int) -> bool:
        """Take a message's cost from the bucket. Returns False if the bucket has too little left."""
        earned = RATE * max(0.0, now - self._at)
        self._left = min(BURST, self._left + earned)
        self._dropped = max(0.0, self._dropped - earned)
        self._at = max(self._at, now)
        if self._left < cost:
            self._dropped += 1
            return False
        self._left -= cost
        return True

    def charge(self, cost: int) -> None:
        """Charge for work already done, even if that takes the bucket below 0."""
        self._left -= cost

    @property
    def floods(self) -> bool:
        """Return True if more messages were dropped than a bucket holds, beyond the sustained rate."""
        return self._dropped > BURST

    def warns(self, now: float) -> bool:
        """Return True if dropped messages should be logged now, which happens at most once a minute."""
        if now < self._warn_at:
            return False
        self._warn_at = now + WARN_EVERY_S
        return True


class LogQuota:
    """Limits the log lines that each sender can cause. A final line says how many were omitted."""

    def __init__(self) -> None:
        # By sender: the start of the interval, and the number of lines.
        self._lines: dict[str, tuple[float, int]] = {}
        self._over: dict[str, int] = {}  # number of omitted lines, by sender

    def admit(self, sender: str, effects: Iterable[E], now: float) -> list[E]:
        """Return the effects without the notes that exceed the sender's quota."""
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
        """Return a line for each sender whose interval has ended, if some of its lines were omitted."""
        notes: list[Note] = []
        for sender in [s for s in self._over if now >= self._lines[s][0] + LINES_S]:
            left_out = self._over.pop(sender)
            del self._lines[sender]
            text = f"{sender}: {left_out} more lines like these in {LINES_S:.0f} s were left out"
            notes.append(Note(logging.WARNING, text))
        return notes

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        return min((self._lines[sender][0] + LINES_S for sender in self._over), default=None)
