"""Devices that may be there unseen, after an outage: asked for a hello again and again, ever more seldom.

The whole fleet is asked by hints when the link is up. Each hint may be lost, and so may the question that
bears a device's name; and a device that was welcomed says nothing by itself as long as its connection and
its broker's last. Who really is away hears nothing, so the questions end after an hour.
"""

import math
from collections.abc import Iterable

# The first question is followed by another after 1, 3, 7, 15, 31 and 63 minutes.
AGAIN_S, QUESTIONS = 60.0, 7
# So many devices are asked at a time; of more, others the next time.
MAX_ASKED = 1000


class Absent:
    """Who is asked, and when."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._asked = 0
        self._at = math.inf

    def begin(self, names: Iterable[str], now: float) -> None:
        """These may be there; the first is the one that is missed most."""
        self._names = list(dict.fromkeys(names))
        self._asked, self._at = 0, now

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        return None if math.isinf(self._at) else self._at

    def poll(self, online: Iterable[str], now: float) -> list[str]:
        """Who is to be asked now; those who are ``online`` have answered."""
        if now < self._at:
            return []
        here = set(online)
        names = [name for name in self._names if name not in here]
        asked, rest = names[:MAX_ASKED], names[MAX_ASKED:]
        self._names = rest + asked
        self._at = now + AGAIN_S * 2**self._asked
        self._asked += 1
        if not asked or self._asked == QUESTIONS:
            self._names, self._at = [], math.inf
        return asked
