"""The event loop: one thread waits for sockets, timers and worker threads.

A station is anything that owns a link, such as an agent's runtime or the coordinator's service. One loop
drives a single station on a device, or hundreds in the emulator.
"""

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Protocol

from sedge_protocol.errors import StorageError, os_reason
from sedge_protocol.host.disk import opened
from sedge_protocol.host.posix import lock
from sedge_protocol.host.systemd import notify, watchdog_interval_s

# The longest that the loop waits at a time. An event ends the wait early, so this limit only affects how
# late ``until`` is checked.
MAX_WAIT_S = 1.0


class Station(Protocol):
    """A service that the loop drives."""

    def step(self) -> None:
        """Do everything that can be done now."""
        ...

    def fileno(self) -> int | None:
        """Return the socket to wait on, or None."""
        ...

    def wants_write(self) -> bool:
        """Return True if the loop should also wait until the socket can be written to."""
        ...

    def timer(self) -> float:
        """Return when ``step`` must be called even if the socket is silent (``time.monotonic``)."""
        ...


class Loop:
    """Waits for events and steps the stations.

    ``wake`` may be called from any thread and from a signal handler.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._stopped = False
        # True if Ctrl-C has ended ``run``.
        self.interrupted = False

    def wake(self) -> None:
        """Make ``run`` step every station soon."""
        try:
            self._writer.send(b"\0")
        except OSError:  # full: a wake-up is already pending; closed: the loop has ended
            return

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end ``run`` cleanly. Call it in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: object) -> None:
        self._stopped = True
        self.interrupted = number == signal.SIGINT
        self.wake()

    def run(self, stations: Sequence[Station], until: Callable[[], bool]) -> None:
        """Step the stations whenever they have work, until asked to stop. Feeds the watchdog."""
        interval_s = watchdog_interval_s()
        feed_at = 0.0
        while not (self._stopped or until()):
            if interval_s is not None and time.monotonic() >= feed_at:
                feed_at = time.monotonic() + interval_s
                notify("WATCHDOG=1")
            for station in self._wait(stations):
                station.step()

    def close(self) -> None:
        """Close the loop's own sockets."""
        self._reader.close()
        self._writer.close()

    def _wait(self, stations: Sequence[Station]) -> Sequence[Station]:
        """Wait for events. Returns the stations that have something to do."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        owners: dict[int, Station] = {}
        for station in stations:
            fileno = station.fileno()
            if fileno is not None and fileno >= 0:
                owners[fileno] = station
                poll.register(
                    fileno, select.POLLIN | (select.POLLOUT if station.wants_write() else 0)
                )
        due = min((station.timer() for station in stations), default=0.0)
        wait_s = min(MAX_WAIT_S, max(0.0, due - time.monotonic()))
        ready = {fileno for fileno, _ in poll.poll(wait_s * 1000)}
        if self._reader.fileno() in ready:
            self._reader.recv(4096)
            return stations
        now = time.monotonic()
        touched = {id(owners[fileno]) for fileno in ready}
        return [s for s in stations if id(s) in touched or s.timer() <= now]


def lock_folder(folder: Path) -> IO[bytes]:
    """Lock a state folder for this process. Raises ``StorageError`` if another process has locked it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with opened(folder / "lock", os.O_WRONLY | os.O_CREAT) as descriptor:
            handle = os.fdopen(os.dup(descriptor), "wb")
    except OSError as exc:
        raise StorageError(f"{folder}: {os_reason(exc)}") from exc
    try:
        lock(handle.fileno(), wait=False)
    except OSError as exc:
        handle.close()
        is_locked = isinstance(exc, BlockingIOError)
        why = "another process is using this state folder" if is_locked else os_reason(exc)
        raise StorageError(f"{folder}: {why}") from exc
    return handle
