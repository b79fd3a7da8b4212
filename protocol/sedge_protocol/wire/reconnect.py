"""Decides how long a link waits before it reconnects, and what to log about an outage. Does no I/O.

The more an attempt costs, the longer the waits become. If the network refuses a connection, the attempt
costs two packets, 100 bytes in total. If nothing answers, it costs several packets and up to ten seconds
with the radio on. If a broker accepts us and then disconnects us, it may cost a TLS handshake of 5 kB, and
the next attempt is likely to fail the same way.

Up to these ceilings, a wait grows with the length of the outage: after three minutes without a broker, a
device need not be back within one second, but should not stay away for three more minutes. It also grows
with the size of the fleet, whose devices all come back at once.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

FIRST_S = 1.0
# The devices of a small fleet reconnect within this many seconds after their broker comes back.
SOON_S = 5.0
# After an outage of t seconds, a device reconnects at most t / 36 seconds later: within five seconds after
# an outage of three minutes.
OUTAGE_PART = 36
# Roughly how many devices come back per second: after a short interruption, and after a longer outage.
FIRST_DEVICES_A_SECOND, DEVICES_A_SECOND = 100, 10
# When a coordinator asks a fleet for hellos, the devices spread their answers so that about this many
# arrive per second.
HELLOS_A_SECOND = 200
# The assumed size of a fleet whose coordinator has not announced it.
UNKNOWN_DEVICES = 100
# A device that no coordinator has ever welcomed tries at least this often for this long after its start,
# even if the broker rejects it. Somebody may be about to accept the device, or the broker may be about to
# load its password.
NEW_S, NEW_FOR_S = 10.0, 600.0
# A long outage is logged again at this interval, to show that the attempts continue.
LOG_EVERY_S = 3600.0


def is_unknown_account(reason: str) -> bool:
    """Return True if the broker rejected the user name and password."""
    return "Not authorized" in reason or "Bad user name or password" in reason


class Ended(Enum):
    """How a connection, or an attempt to connect, ended."""

    HEARD = auto()  # a message had arrived, or we closed a silent connection
    REFUSED = auto()  # the network answered that nothing listens at this address
    UNANSWERED = auto()  # no CONNACK came, whatever the reason
    TURNED_AWAY = auto()  # the broker refused us, or accepted us and sent no message


CEILINGS_S = {
    Ended.HEARD: 30.0,
    Ended.REFUSED: 30.0,
    Ended.UNANSWERED: 60.0,
    Ended.TURNED_AWAY: 300.0,
}


def longest_s(ended: Ended, failures: int, away_s: float, devices: int) -> float:
    """Return the longest wait, in seconds, after ``failures`` consecutive connections without a message.

    The outage has lasted ``away_s`` seconds so far. ``devices`` is the size of the fleet, or 0 if unknown.
    """
    devices = devices or UNKNOWN_DEVICES
    most, doublings = CEILINGS_S[ended], 2.0 ** min(failures, 9)
    if ended is Ended.TURNED_AWAY:
        return min(most, FIRST_S * doublings)
    first = max(FIRST_S, devices / FIRST_DEVICES_A_SECOND)
    soon = max(SOON_S, devices / DEVICES_A_SECOND, away_s / OUTAGE_PART)
    return min(most, soon, first * doublings)


@dataclass
class Reconnect:
    """Computes how long one link waits between connections.

    ``devices`` is as in ``longest_s``. No wait exceeds ``most_s``, unless the broker rejected us.
    ``is_new`` is true until a coordinator welcomes this device for the first time.
    """

    rng: np.random.Generator
    most_s: float = float("inf")
    devices: int = 0
    is_new: bool = False
    _failures: int = 0
    _since: float | None = None
    _logged: dict[str, float] = field(default_factory=dict[str, float])

    def wait_s(self, ended: Ended, now: float) -> float:
        """Return the seconds to wait, with full jitter, after a connection that ended as ``ended`` says."""
        if ended is Ended.HEARD:
            self._failures, self._since = 0, now
            self._logged.clear()
        else:
            self._failures += 1
        if self._since is None:
            self._since = now
        longest = longest_s(ended, self._failures, now - self._since, self.devices)
        if ended is not Ended.TURNED_AWAY:
            longest = min(longest, self.most_s)
        elif self.is_new and now - self._since < NEW_FOR_S:
            longest = min(longest, NEW_S)
        return float(self.rng.uniform(0.1 * longest, longest))

    def is_news(self, reason: str, now: float) -> bool:
        """Return True if this reason should be logged: it is new in this outage, or an hour has passed."""
        if now < self._logged.get(reason, -LOG_EVERY_S) + LOG_EVERY_S:
            return False
        self._logged[reason] = now
        return True
