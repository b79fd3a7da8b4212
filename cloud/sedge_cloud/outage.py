"""How long devices may take to come back after an outage: of the coordinator's process, or of its link."""

import math

from sedge_protocol.wire.reconnect import CEILINGS_S, HELLOS_A_SECOND, Ended, longest_s

# A device says hello within this long after it has connected.
HELLO_S = 5.0
# Connections that were refused in a row: more make no wait longer.
MANY = 9
# A round whose time was over while the coordinator was away waits so long for devices to come back: as long
# as they wait at most between two connections to a broker that does not answer, and for their hello.
RETURN_S = CEILINGS_S[Ended.UNANSWERED] + HELLO_S


def return_s(away_s: float, devices: int) -> float:
    """How long a fleet of this size may take to reconnect after an outage (reconnect.py).

    Those whose own link has held are asked by hints, and spread their answers (WIRE.md, 1.10).
    """
    by_hints_s = devices / HELLOS_A_SECOND
    return max(longest_s(Ended.UNANSWERED, MANY, away_s, devices), by_hints_s) + HELLO_S


class Outage:
    """When the link was last down. From ``back_at`` on, devices that have not come back count as gone."""

    def __init__(self) -> None:
        self.back_at = math.inf
        self._since: float | None = None

    def ends(self, now: float, silent_s: float, devices: int) -> None:
        """The link is up; before this process began, there was no coordinator for ``silent_s``."""
        away_s = silent_s if self._since is None else now - self._since
        self.back_at = now + return_s(max(0.0, away_s), devices)

    def begins(self, now: float) -> None:
        """The link is down."""
        if self._since is None or now >= self.back_at:  # otherwise the same outage goes on
            self._since = now
        self.back_at = math.inf
