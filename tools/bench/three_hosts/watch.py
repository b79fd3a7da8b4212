"""Polls the database ten times a second to learn when each update was accepted and each round closed."""

import threading
import time
from collections.abc import Callable, Collection

import psycopg

LOOK_S = 0.1
# An update, as (run, round, device).
Update = tuple[str, int, str]


class Watch(threading.Thread):
    """A thread that polls the database until ``close``, even while the database is down.

    Times are seconds on the monotonic clock.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._ended = url, threading.Event()
        self._db: psycopg.Connection | None = None
        self.accepted: dict[Update, float] = {}
        self.opened: dict[str, int] = {}
        self.start()

    def run(self) -> None:
        """Poll the database. The thread runs this."""
        while not self._ended.wait(LOOK_S):
            try:
                self._look()
            except psycopg.Error:
                self._db = None

    def _look(self) -> None:
        if self._db is None:
            self._db = psycopg.connect(self._url, autocommit=True, connect_timeout=2)
        newest = "SELECT run, MAX(round) FROM rounds GROUP BY run"
        opened: dict[str, int] = dict(self._db.execute(newest).fetchall())
        since = min(opened.values(), default=0) - 1
        rows = self._db.execute(
            "SELECT run, round, device FROM updates WHERE round >= %s", (since,)
        )
        now = time.monotonic()
        for row in rows.fetchall():
            self.accepted.setdefault((row[0], row[1], row[2]), now)
        self.opened = opened

    def closed(self) -> int:
        """Return how many rounds every run has closed."""
        return min(self.opened.values(), default=0) - 1

    def after(self, since: float, devices: Collection[str]) -> float | None:
        """Return the seconds from ``since`` to the next accepted update from one of these devices, or None.

        Updates seen by the first poll after ``since`` do not count: they may have been accepted before it.
        """
        first = since + LOOK_S
        times = [at for update, at in self.accepted.items() if update[2] in devices and at > first]
        return min(times) - since if times else None

    def holders(self) -> dict[str, str]:
        """Return the host that holds each lease, by the lease's name."""
        sql = "SELECT l.name, p.host FROM leases l JOIN processes p ON p.token = l.token"
        with psycopg.connect(self._url, connect_timeout=2) as db:
            return dict(db.execute(sql).fetchall())

    def close(self) -> None:
        """Stop polling."""
        self._ended.set()
        self.join()


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds.

    Raises ``TimeoutError`` with ``what`` if it does not within ``seconds``.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(LOOK_S)
