"""Threads beside the coordinator's loop that look at the facts now and then."""

import logging
import threading
from collections.abc import Callable

from sedge_cloud.status.records import Fleet
from sedge_cloud.status.snapshot import Snapshot
from sedge_protocol.errors import SedgeError

_log = logging.getLogger("sedge.watch")


class Watcher:
    """Hands each reading to ``take``, at most every ``every_s`` seconds, from ``start`` to ``close``."""

    def __init__(
        self, name: str, snapshot: Snapshot, every_s: float, take: Callable[[Fleet], None]
    ) -> None:
        self._snapshot = snapshot
        self._every_s = every_s
        self._take = take
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End soon; a ``take`` that hangs is not waited for."""
        self._stop.set()
        self._thread.join(timeout=1)

    def _run(self) -> None:
        last: Fleet | None = None
        while not self._stop.wait(self._every_s):
            try:
                facts = self._snapshot.facts()
            except SedgeError as exc:  # the coordinator itself logs what is wrong
                _log.debug("no facts: %s", exc)
                continue
            if facts is not last:
                last = facts
                self._take(facts)
