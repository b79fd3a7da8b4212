"""Records the running coordinator's observations of devices, rounds, broker and disk as rows.

It writes only changes, at most once a second and in one transaction, so an idle fleet costs only
heartbeats. These rows are not flushed. If the disk refuses them, this is not treated as an error; they are
retried a second later. Until then, status displays are out of date and, if another process leads, it does
not know which devices have come or gone (rounds/elsewhere.py).
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from sedge_cloud.coordinator import Coordinator
from sedge_cloud.rounds.lifecycle import OpenRound
from sedge_cloud.store.rows import CoordinatorRow, DiskRow, RoundRow, TrafficRow
from sedge_protocol.errors import StorageError

# The maximum number of sessions per write: when a large fleet comes or goes, recording it must not hold up
# the loop.
MIN_S, MOST_SESSIONS = 1.0, 5000
# How often to write a heartbeat, to measure the size of the state, and to keep a measurement, in seconds.
SIGN_S, MEASURE_S, KEEP_S = 2.0, 60.0, 3600.0
# Phase ends that differ by less than this count as equal, because the offset between the two clocks varies.
SAME_S = 1.0


class Recorder:
    """Writes a coordinator's observations as rows. The loop calls it; ``wall`` is as in ``Coordinator``."""

    def __init__(self, core: Coordinator, wall: Callable[[float], float]) -> None:
        self._core = core
        self._store = core.store
        self._wall = wall
        started = wall(time.monotonic())
        self._row = CoordinatorRow(running=True, started=started, link_since=started)
        self._rounds: dict[str, RoundRow] = {}  # open rounds, by run, as last written
        self._traffic = frozenset[TrafficRow]()  # the traffic in open rounds, as last written
        self._due = self._sign_at = self._look_at = self._measure_at = self._keep_at = 0.0
        self._written: object = None

    def link(self, connected: bool, now: float, error: str = "", max_packet: int = 0) -> None:
        """Record that the link is up or down. A failed attempt only updates the error."""
        since = self._row.link_since if connected == self._row.link else self._wall(now)
        self._row = msgspec.structs.replace(
            self._row,
            link=connected,
            link_since=since,
            link_error=error,
            max_packet=max_packet or self._row.max_packet,
        )

    def error(self, text: str, now: float) -> None:
        """Record an error that the coordinator has logged."""
        self._row = msgspec.structs.replace(self._row, error=text, error_at=self._wall(now))

    def poll(self, now: float) -> None:
        """Write changes if a write is due; ``now`` is the loop's clock."""
        if now < self._due:
            return
        self._due = now + MIN_S
        disk = self._measure(now)
        self._write(now, disk)

    def flush(self, now: float) -> None:
        """Write all changes now."""
        self._due = now
        self.poll(now)

    def close(self, now: float) -> None:
        """Record that the service has stopped cleanly."""
        self._row = msgspec.structs.replace(self._row, running=False)
        self._written = None
        self._write(now, None)

    def _write(self, now: float, disk: DiskRow | None) -> None:
        self._core.ingest.progress.poll(now)
        sessions = self._core.devices.take_unsaved(MOST_SESSIONS)
        opened = self._core.open
        standing = {run: self._standing(current, now) for run, current in opened.items()}
        rounds = [row for run, row in standing.items() if row != self._rounds.get(run)]
        state = self._row, self._core.counters.total()
        if not (sessions or rounds or disk or state != self._written or now >= self._sign_at):
            return
        counters = msgspec.msgpack.encode(dict(self._core.counters))
        row = msgspec.structs.replace(
            self._row, id=self._store.token or 1, heard=self._wall(now), counters=counters
        )
        traffic = self._core.traffic_for_leader()
        moved = [it for it in traffic if it not in self._traffic]
        try:
            self._store.save_observations(sessions, rounds, row, disk, moved)
        except StorageError:
            self._core.devices.put_back(sessions)
            return
        self._rounds, self._written, self._sign_at = standing, state, now + SIGN_S
        self._traffic = frozenset(traffic)

    def _standing(self, current: OpenRound, now: float) -> RoundRow:
        """Return the row of an open round, updated to its current state."""
        config = self._core.runs[current.row.run].config
        last = self._rounds.get(current.row.run, current.row)
        serves = not current.row.ends_at

        def end(at: float, before: float) -> float:
            wall = 0.0 if serves else self._wall(at)
            return before if abs(wall - before) < SAME_S else wall

        return msgspec.structs.replace(
            current.row,
            phase=current.phase.value,
            ends_at=end(current.ends_at, last.ends_at),
            deadline=end(current.deadline, last.deadline),
            needed=0 if serves else current.needed(config),
            extended=current.extended,
        )

    def _measure(self, now: float) -> DiskRow | None:
        """Measure free space and, less often, the size of the state.

        Returns a measurement if it is time to keep one.
        """
        folder = self._store.folder
        with suppress(OSError):
            disk = shutil.disk_usage(folder)
            if now >= self._look_at:  # timed separately, as a busy fleet writes no heartbeats
                self._look_at = now + SIGN_S
                self._row = msgspec.structs.replace(self._row, free=disk.free, total=disk.total)
            if now >= self._measure_at:
                self._measure_at = now + MEASURE_S
                self._row = msgspec.structs.replace(self._row, used=folder_bytes(folder))
                if now >= self._keep_at:
                    self._keep_at = now + KEEP_S
                    return DiskRow(self._wall(now), self._row.used)
        return None


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder tree, except those that vanish or are unreadable."""
    total = 0
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError, PermissionError):
            if entry.is_dir(follow_symlinks=False):
                total += folder_bytes(Path(entry.path))
            else:
                total += entry.stat(follow_symlinks=False).st_size
    return total
