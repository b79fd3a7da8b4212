"""Rate limits: no device may crowd out the others or fill the log.

Each device has a token bucket of messages, far above what an honest one needs: a round takes about five
messages and the chunks, and 500 chunks of 64 KiB a second fill a link of 260 Mbit/s. A message's cost
follows from its length and kind, before its MAC is checked. A message beyond the bucket is dropped like one
lost on its way: its sender repeats it. Messages of unknown senders and revoked devices are always dropped.

Each device has a quota of log lines; all unknown senders share one.
"""

import logging
from collections.abc import Iterable
from typing import TypeVar

from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.frame import HEADER, Kind, asks

E = TypeVar("E")

RATE = 500.0  # messages a second, sustained
BURST = 2000.0  # messages at once
# This many body bytes cost as much as one message: checking their MAC takes as long.
UNIT_BYTES = 2**16
# A HELLO may take a transaction and is answered with the open orders; a connection needs only one. An OFFER
# or a GET reads rows or files, and a JOIN runs a key agreement. A GET also pays for each chunk it queues.
COST: dict[int, int] = {Kind.HELLO: 100, Kind.OFFER: 5, Kind.GET: 5, Kind.JOIN: 10}
# A doctor's HELLO changes nothing and is answered from memory. A doctor sends one or two for each size.
DOCTOR_COST = 5
_KIND = 3
WARN_EVERY_S = 60.0
# At most LINES log lines in LINES_S seconds; an honest device causes a few per round.
LINES, LINES_S = 20, 60.0


def cost(payload: bytes) -> int:
    """A frame's cost to its sender's bucket, by its length and the kind that it claims."""
    units = max(1, -(-(len(payload) - HEADER.size) // UNIT_BYTES))
    if len(payload) <= _KIND:
        return units
    return units - 1 + (DOCTOR_COST if asks(payload) else COST.get(payload[_KIND], 1))


class TokenBucket:
    """One sender's bucket."""

    def __init__(self) -> None:
        self._left = BURST
        self._dropped = 0.0  # messages beyond it, which drain at the same rate
        self._at = self._warn_at = 0.0

    def spend(self, now: float, cost: int = 1) -> bool:
        """Take a message's cost; False when the bucket has too little left for it."""
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
        """Take the cost of work already done; the bucket may fall below 0."""
        self._left -= cost

    @property
    def floods(self) -> bool:
        """Whether more messages were dropped than a full bucket holds, beyond the sustained rate."""
        return self._dropped > BURST

    def warns(self, now: float) -> bool:
        """Whether dropped messages should be logged now: once a minute."""
        if now < self._warn_at:
            return False
        self._warn_at = now + WARN_EVERY_S
        return True


class LogQuota:
    """Limits the log lines that each sender causes; one line says how many were left out."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[float, int]] = {}  # since when, how many
        self._over: dict[str, int] = {}  # lines left out, by sender

    def admit(self, sender: str, effects: Iterable[E], now: float) -> list[E]:
        """The effects without the notes that exceed the quota."""
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
        """A line for each sender whose interval with omitted lines is over."""
        notes: list[Note] = []
        for sender in [s for s in self._over if now >= self._lines[s][0] + LINES_S]:
            left_out = self._over.pop(sender)
            del self._lines[sender]
            text = f"{sender}: {left_out} more lines like these in {LINES_S:.0f} s were left out"
            notes.append(Note(logging.WARNING, text))
        return notes

    def timer(self) -> float | None:
        """The time at which ``poll`` must next be called; None if nothing is due."""
        return min((self._lines[sender][0] + LINES_S for sender in self._over), default=None)
