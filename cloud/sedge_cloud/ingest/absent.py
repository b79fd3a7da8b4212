"""Devices that may be there unseen, after an outage: asked for a hello again and again, ever more seldom.

The whole fleet is asked by hints when the link is up. Each hint may be lost, and so may the question that
bears a device's name; and a device that was welcomed says nothing by itself as long as its connection and
its broker's last. Who really is away hears nothing, so the questions end after an hour.
"""

import math
from collections.abc import Iterable

from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.ingest.sessions import Fleet
from sedge_protocol.wire.effects import Send

# The first question is followed by another after 1, 3, 7, 15, 31 and 63 minutes.
AGAIN_S, QUESTIONS = 60.0, 7
# So many devices are asked at a time; of more, others the next time.
MAX_ASKED = 1000


class Absent:
    """Which of a process's ``devices`` are asked, and when."""

    def __init__(self, devices: Fleet) -> None:
        self._devices = devices
        self._names: list[str] = []
        self._is_listed = False  # whether those are among the names that nobody misses
        self._asked = 0
        self._at = math.inf

    def begin(self, names: Iterable[str], now: float) -> None:
        """These are missed, the first most, and all others may be there, too."""
        self._names, self._is_listed = list(names), False
        self._asked, self._at = 0, now

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        return None if math.isinf(self._at) else self._at

    def poll(self, now: float) -> list[Send]:
        """The questions that are due. Raises ``StorageError``: they are due again a little later."""
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
