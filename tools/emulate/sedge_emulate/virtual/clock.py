"""Virtual time: the queue of coming events. Nothing here ever sleeps.

Events for the same time run in the order in which they were scheduled, so a run repeats exactly.
"""

import heapq
import itertools
from collections.abc import Callable

# An actor that is due immediately is delayed by this much, so that one call handles everything that
# happens within this time.
MOMENT_S = 0.001


class Clock:
    """A queue of coming events. ``now`` is in seconds since the run began."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule ``action`` at ``when``, or immediately if that is in the past."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._numbers), action))

    def step(self) -> bool:
        """Run the next event. Returns False if there is none."""
        if not self._queue:
            return False
        self.now, _, action = heapq.heappop(self._queue)
        action()
        return True


class Alarm:
    """Schedules one actor's next wake-up, which may come early but never late."""

    def __init__(self, clock: Clock, action: Callable[[], None]) -> None:
        self._clock = clock
        self._action = action
        self._due: float | None = None

    def set(self, when: float | None) -> None:
        """Ring at ``when``, or at the time already set if that is earlier. None changes nothing."""
        if when is None or (self._due is not None and self._due <= when):
            return
        self._due = max(when, self._clock.now + MOMENT_S)
        due = self._due
        self._clock.at(due, lambda: self._ring(due))

    def clear(self) -> None:
        """Cancel the wake-up."""
        self._due = None

    def _ring(self, due: float) -> None:
        if self._due == due:
            self._due = None
            self._action()
