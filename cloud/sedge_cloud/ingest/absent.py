"""After an outage, asks devices that may be online unnoticed for a hello, at growing intervals.

When the link comes up, the whole fleet is asked with one message per shard. Each may be lost, and so may a
request to a single device; and a device that has been welcomed says nothing unasked while its connection
and its broker's last. Devices that really are away receive nothing, so requests end after about an hour.
"""

import math
from collections.abc import Iterable

from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.ingest.sessions import Fleet
from sedge_protocol.wire.effects import Send

# The first request is followed by others after 1, 3, 7, 15, 31 and 63 minutes.
AGAIN_S, QUESTIONS = 60.0, 7
# At most this many devices are asked at a time; the others follow the next time.
MAX_ASKED = 1000


class Absent:
    """Which of a process's ``devices`` are asked, and when."""

    def __init__(self, devices: Fleet) -> None:
        self._devices = devices
        self._names: list[str] = []
        self._is_listed = False  # whether the names include all other devices
        self._asked = 0
        self._at = math.inf

    def begin(self, names: Iterable[str], now: float) -> None:
        """Start asking: these devices first, in this order, then all others that may be online."""
        self._names, self._is_listed = list(names), False
        self._asked, self._at = 0, now

    def timer(self) -> float | None:
        """The time at which ``poll`` must next be called; infinite if nothing is due."""
        return None if math.isinf(self._at) else self._at

    def poll(self, now: float) -> list[Send]:
        """The requests that are due. Raises ``StorageError``; they are then due again a little later."""
        if now < self._at:
            return []
        self._at = now + DISK_RETRY_S
        self._devices.end_inherited(now)
        if not self._is_listed:
            self._names = list(dict.fromkeys([*self._names, *self._devices.listed()]))
            self._is_listed = True
        names = self._devices.away(self._names)
        asked, rest = names[:MAX_ASKED], names[MAX_ASKED:]
        questions = self._devices.request_hello(asked)
        self._names = rest + asked
        self._at = now + AGAIN_S * 2**self._asked
        self._asked += 1
        if not asked or self._asked == QUESTIONS:
            self._names, self._at = [], math.inf
        return questions
