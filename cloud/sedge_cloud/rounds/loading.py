"""Takes over what the command line has changed in the store: runs that came, ended or went."""

import math

from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.events import CloudEffect
from sedge_cloud.hints import Hint
from sedge_cloud.rounds.accounts import catch_up_all
from sedge_cloud.rounds.housekeeping import Housekeeping
from sedge_cloud.rounds.lifecycle import RUNNING
from sedge_cloud.rounds.scheduler import Scheduler
from sedge_cloud.rounds.serving import serving_run
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import RunRow
from sedge_protocol.errors import StorageError


class Loading:
    """Runs as the store has them."""

    def __init__(self, store: Rows, rounds: Scheduler, housekeeping: Housekeeping) -> None:
        self._store = store
        self._rounds = rounds
        self._housekeeping = housekeeping
        self._retry_at = math.inf  # finite while a run could not be read
        self._names: set[str] | None = None  # of all runs

    def is_due(self, now: float) -> bool:
        """Whether a run that could not be read is to be tried again."""
        return now >= self._retry_at

    def load(self, now: float) -> list[CloudEffect | Hint]:
        """Load runs: at the start, and when another process has changed something.

        Raises ``StorageError``.
        """
        effects: list[CloudEffect | Hint] = []
        is_first, self._retry_at = self._names is None, math.inf
        if is_first:
            catch_up_all(self._store)
        effects += self._load_runs(now)
        if is_first:
            effects += self._housekeeping.started()
        for current in self._rounds.open_rounds():
            effects += self._rounds.refresh(current)
        return effects

    def _load_runs(self, now: float) -> list[CloudEffect | Hint]:
        rows, effects = self._store.runs(), list[CloudEffect | Hint]()
        names = {row.run for row in rows}
        for name in sorted((self._names or set()) - names):
            effects += self._rounds.forget(name)
            self._housekeeping.schedule()
        self._names, self._rounds.serving = names, serving_run(rows)
        for row in rows:
            effects += self._load_run(row, now)
        return effects

    def _load_run(self, row: RunRow, now: float) -> list[CloudEffect | Hint]:
        live = self._rounds.live.get(row.run)
        is_new = live is None and (row.status == RUNNING or row is self._rounds.serving)
        known = None if live is None else (live.run.status, live.run.coded_config)
        is_resumed = row.status == RUNNING and known not in (None, (RUNNING, row.config))
        if is_new or is_resumed:
            try:
                return self._rounds.add_run(row, now)
            except StorageError as exc:  # the other runs go on
                self._retry_at = now + DISK_RETRY_S
                return [self._housekeeping.storage_failed(exc, row.run)]
        if live is not None and row.status != RUNNING and live.run.status == RUNNING:
            return self._rounds.stop(live)
        return []
