"""Virtual time: the queue of coming events. Nothing here waits.

Events of one time happen in the order in which they were scheduled, so a run repeats exactly.
"""

import heapq
import itertools
from collections.abc import Callable

# An actor that is due at once acts this much later, together with everything else that happens until then.
MOMENT_S = 0.001


class Clock:
    """``now`` in seconds since the run began, and the queue of coming events."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule an action; immediately if the time has passed."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._numbers), action))

    def step(self) -> bool:
        """Let the next event happen. False if there is none."""
        if not self._queue:
            return False
        self.now, _, action = heapq.heappop(self._queue)
        action()
        return True


class Alarm:
    """One actor's next wake-up, which may come early but never late."""

    def __init__(self, clock: Clock, action: Callable[[], None]) -> None:
        self._clock = clock
        self._action = action
        self._due: float | None = None

    def set(self, when: float | None) -> None:
        """Ring at this time, or (None) not at all; an earlier time that is already set stays."""
        if when is None or (self._due is not None and self._due <= when):
            return
        self._due = max(when, self._clock.now + MOMENT_S)
        due = self._due
        self._clock.at(due, lambda: self._ring(due))

    def clear(self) -> None:
        """Do not ring."""
        self._due = None

    def _ring(self, due: float) -> None:
        if self._due == due:
            self._due = None
            self._action()
