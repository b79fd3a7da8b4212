"""Virtual time: what is to happen, and when."""

import heapq
from collections.abc import Callable

EPOCH = 1.8e9  # the wall clock at the virtual 0


def wall_at(now: float) -> float:
    """What a clock on the wall shows at a virtual time."""
    return EPOCH + now


class Timeline:
    """``now`` is in seconds since the world began."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    @property
    def wall(self) -> float:
        return wall_at(self.now)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something at a virtual time; first in, first out among equals."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._order, action))

    def act_until(self, end: float) -> bool:
        """Let time pass to the first thing that is to happen by ``end``, and do it; False: to the end."""
        if not self._queue or self._queue[0][0] > end:
            self.now = end
            return False
        at, _, action = heapq.heappop(self._queue)
        self.now = max(self.now, at)
        action()
        return True
