"""After an outage, asks for a hello from devices that may be online without the coordinator knowing.

When the connection is restored, one message per shard asks the whole fleet. Each message may be lost, as
may a request to a single device. A device that has been welcomed does not say hello again by itself as long
as it and its broker stay connected. Requests are therefore repeated, at growing intervals. They end after
about an hour, since devices that really are gone receive nothing.
"""

import math
from collections.abc import Iterable

from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_protocol.wire.effects import Send

# The first request is repeated after 1, 3, 7, 15, 31 and 63 minutes.
AGAIN_S, QUESTIONS = 60.0, 7
# At most this many devices are asked per repetition; the others follow in the next one.
MAX_ASKED = 1000


class Absent:
    """Decides which ``devices`` of a process are asked for a hello, and when."""

    def __init__(self, devices: DeviceRegistry) -> None:
        self._devices = devices
        self._names: list[str] = []
        self._is_listed = False  # whether the names already include all other devices
        self._asked = 0
        self._at = math.inf

    def begin(self, names: Iterable[str], now: float) -> None:
        """Start asking: first the named devices, in this order, then all others that may be online."""
        self._names, self._is_listed = list(names), False
        self._asked, self._at = 0, now

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called, or None if nothing is due."""
        return None if math.isinf(self._at) else self._at

    def poll(self, now: float) -> list[Send]:
        """Return the requests that are due.

        Raises ``StorageError``, in which case they remain due and are returned a little later.
        """
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
