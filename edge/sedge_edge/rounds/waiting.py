"""Tracks why a device is not working: which gates are closed, and when to say so in a HELLO.

    a gate closes               nothing more is fetched or begun, nor sent if the gate limits the link
      -> closed for COUNTS_S    the device says so, and the coordinator no longer counts on it
    all are open                the device says so, and continues

A gate that closes only briefly is not reported. A gate that is closed when the agent starts is reported at
once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sedge_protocol.wire.reasons import without_numbers

# How often to check the gates. Reading a dozen small files takes a millisecond, as long as a training step
# of a small model.
CHECK_S = 10.0
COUNTS_S = 60.0


@dataclass(frozen=True)
class Closed:
    """Why gates are closed; empty if they are all open.

    ``link`` says whether one of them also holds back updates.
    """

    why: str = ""
    link: bool = False

    def __bool__(self) -> bool:
        return bool(self.why)


OPEN = Closed()
Gate: TypeAlias = Callable[[], Closed]


class GateWatch:
    """Watches the gates of a device. There are none if ``gate`` is None."""

    def __init__(self, gate: Gate | None) -> None:
        self.closed = OPEN
        self._gate = gate
        self._said = ""
        self._counts_at = -math.inf
        self._look_at: float | None = None

    def look(self, now: float) -> None:
        """Check the gates."""
        if self._gate is None:
            return
        closed = self._gate()
        if closed and not self.closed and self._look_at is not None:
            self._counts_at = now + COUNTS_S
        self.closed, self._look_at = closed, now + CHECK_S
        if not closed:
            self._said = ""
        elif now >= self._counts_at and without_numbers(closed.why) != without_numbers(self._said):
            # Wait before reporting the next reason.
            self._said, self._counts_at = closed.why, now + COUNTS_S

    def reason(self, disk: str) -> str:
        """Return the reasons to report: gates that have been closed for long enough, and disk errors."""
        return "; ".join(why for why in (self._said, disk) if why)

    def timer(self) -> float | None:
        """Return the time at which ``look`` is next due."""
        return self._look_at
