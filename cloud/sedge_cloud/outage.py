"""How long to wait for devices after an outage of the coordinator's process or of its link."""

import math

from sedge_protocol.wire.reconnect import CEILINGS_S, HELLOS_A_SECOND, Ended, longest_s

# A device says hello within this many seconds after connecting.
HELLO_S = 5.0
# After this many refused connections in a row, the time until a device's next attempt stops growing.
MANY = 9
# If a round's time ran out while the coordinator was away, devices get this long to come back: the longest
# time between two attempts to connect to a broker that does not answer, plus the time for a hello.
RETURN_S = CEILINGS_S[Ended.UNANSWERED] + HELLO_S


def return_s(away_s: float, devices: int) -> float:
    """Return how long a fleet of this size may take to reconnect after an outage (reconnect.py).

    Devices whose own connection survived are asked for a hello. They spread out their answers (WIRE.md,
    1.10).
    """
    by_hints_s = devices / HELLOS_A_SECOND
    return max(longest_s(Ended.UNANSWERED, MANY, away_s, devices), by_hints_s) + HELLO_S


class Outage:
    """The link's last outage. From ``back_at`` on, devices that have not come back are considered gone."""

    def __init__(self) -> None:
        self.back_at = math.inf
        self._since: float | None = None

    def ends(self, now: float, silent_s: float, devices: int) -> None:
        """End the outage. In a new process, ``silent_s`` is how long there had been no coordinator."""
        away_s = silent_s if self._since is None else now - self._since
        self.back_at = now + return_s(max(0.0, away_s), devices)

    def begins(self, now: float) -> None:
        """Begin an outage, because the link is down."""
        if self._since is None or now >= self.back_at:  # otherwise the previous outage continues
            self._since = now
        self.back_at = math.inf
