"""Takes over what the command line has changed in the store: devices, and runs that came, ended or went."""

import math

from sedge_cloud.events import CloudEffect
from sedge_cloud.rounds.accounts import catch_up_all
from sedge_cloud.rounds.housekeeping import DISK_RETRY_S, Housekeeping
from sedge_cloud.rounds.lifecycle import RUNNING
from sedge_cloud.rounds.reach import Enrolled
from sedge_cloud.rounds.scheduler import Scheduler
from sedge_cloud.rounds.serving import serving_run
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import RunRow
from sedge_protocol.errors import StorageError


class Loading:
    """Devices and runs as the store has them. ``started`` is when it was first read."""

    def __init__(
        self, store: Store, devices: Enrolled, rounds: Scheduler, housekeeping: Housekeeping
    ) -> None:
        self.started = 0.0
        self._store = store
        self._devices = devices
        self._rounds = rounds
        self._housekeeping = housekeeping
        self._load_at = 0.0
        self._reload_at = math.inf  # finite while a run could not be read
        self._version: int | None = None
        self._names: set[str] = set()  # of all runs

    def load(self, now: float) -> list[CloudEffect]:
        """Load devices and runs: at the start, and when another process has changed something.

        Raises ``StorageError`` when the store cannot be read at the start; later it is tried again.
        """
        effects: list[CloudEffect] = []
        if now < self._load_at:
            return effects
        try:
            version = self._store.version()
            if version != self._version or now >= self._reload_at:
                self._reload_at = math.inf
                effects += self._devices.load(now)
                if self._version is None:
                    catch_up_all(self._store)
                effects += self._load_runs(now)
                if self._version is None:
                    self.started = now
                    effects += self._housekeeping.started()
                for current in self._rounds.open_rounds():
                    effects += self._rounds.refresh_presence(current)
                self._version = version
        except StorageError as exc:
            if self._version is None:
                raise
            self._load_at = now + DISK_RETRY_S
            effects.append(self._housekeeping.storage_failed(exc))
        return effects

    def find(self, name: str, now: float) -> list[CloudEffect]:
        """Load a run that an offer names, even one that ended before this process started."""
        if name in self._rounds.live or name not in self._names:
            return []
        row = next((row for row in self._store.runs() if row.run == name), None)
        return [] if row is None else self._rounds.add_run(row, now)

    def _load_runs(self, now: float) -> list[CloudEffect]:
        rows, effects = self._store.runs(), list[CloudEffect]()
        names = {row.run for row in rows}
        for name in sorted(self._names - names):
            effects += self._rounds.forget(name)
            self._housekeeping.run_deleted()
        self._names, self._rounds.serving = names, serving_run(rows)
        for row in rows:
            effects += self._load_run(row, now)
        return effects

    def _load_run(self, row: RunRow, now: float) -> list[CloudEffect]:
        live = self._rounds.live.get(row.run)
        is_new = live is None and (row.status == RUNNING or row is self._rounds.serving)
        known = None if live is None else (live.run.status, live.run.coded_config)
        is_resumed = row.status == RUNNING and known not in (None, (RUNNING, row.config))
        if is_new or is_resumed:
            try:
                return self._rounds.add_run(row, now)
            except StorageError as exc:  # the other runs go on
                self._reload_at = now + DISK_RETRY_S
                return [self._housekeeping.storage_failed(exc, row.run)]
        if live is not None and row.status != RUNNING and live.run.status == RUNNING:
            return self._rounds.stop(live)
        return []
