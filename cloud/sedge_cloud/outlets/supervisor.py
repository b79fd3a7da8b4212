"""Runs threads alongside the coordinator's loop. An error ends one turn of a thread, not the thread."""

import logging
import threading
import time
from collections.abc import Callable

from sedge_cloud.facts.records import Fleet
from sedge_cloud.facts.snapshot import Snapshot
from sedge_protocol.errors import SedgeError

# While its turns keep failing, a thread waits longer each time, but never longer than this.
MAX_PAUSE_S = 60.0
# A thread logs at most one failed turn in this many seconds.
QUIET_S = 600.0
_log = logging.getLogger("sedge.threads")


class Supervised:
    """Calls ``turn`` every ``every_s`` seconds in a separate thread, from ``start`` to ``close``.

    ``wake`` is called to end a long turn early; ``end`` is called once, when the thread ends.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], None],
        every_s: float,
        *,
        wake: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._turn = turn
        self._every_s = every_s
        self._wake = wake
        self._end = end
        self._stop = threading.Event()
        self._quiet_until = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Make the thread end soon, without waiting for a turn that hangs."""
        self._stop.set()
        self._wake()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        pause_s = self._every_s
        while not self._stop.wait(pause_s):
            try:
                self._turn()
                pause_s = self._every_s
            except Exception as exc:
                self._report(exc)
                pause_s = min(MAX_PAUSE_S, max(1.0, 2 * pause_s))
        self._end()

    def _report(self, error: Exception) -> None:
        if time.monotonic() < self._quiet_until:
            return
        self._quiet_until = time.monotonic() + QUIET_S
        bug = not isinstance(error, SedgeError | OSError)
        _log.error("%s: %s; the thread continues", self._thread.name, error, exc_info=bug)


def watcher(
    name: str, snapshot: Snapshot, every_s: float, take: Callable[[Fleet], None]
) -> Supervised:
    """Return a thread that passes each new reading of the facts to ``take``."""
    last: Fleet | None = None

    def turn() -> None:
        nonlocal last
        facts = snapshot.facts()
        if facts is not last:
            last = facts
            take(facts)

    return Supervised(name, turn, every_s)
