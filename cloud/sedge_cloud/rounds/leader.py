"""The leader: draws cohorts, plans, opens and closes rounds, and keeps the store in order.

It writes runs, rounds, orders, model blobs and the totals of closed rounds, and, through recorder.py, the
progress of open rounds. It reads runs, the ingests' receipts (``updates``) and declines (``orders``) and,
through ``Reach``, which devices are online. Its decisions depend on these rows alone; hints (hints.py) only
announce new rows sooner.
"""

import math
from collections import Counter
from collections.abc import Sequence

from sedge_cloud.clocks import Wall
from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.events import CloudEffect
from sedge_cloud.hints import Hint, ToLeader
from sedge_cloud.rounds.accounts import catch_up_all
from sedge_cloud.rounds.cohort import Draw
from sedge_cloud.rounds.housekeeping import Housekeeping
from sedge_cloud.rounds.lifecycle import RUNNING, OpenRound
from sedge_cloud.rounds.reach import Reach, TrafficMeter
from sedge_cloud.rounds.scheduler import Scheduler
from sedge_cloud.rounds.serving import serving_run
from sedge_cloud.rounds.settings_rollouts import SettingsRollouts
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.runs.manifests import Manifests
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.rows import RunRow
from sedge_protocol.errors import StorageError


class Leader:
    """Carries out the rounds of a fleet's runs. ``draw`` selects the devices for a round."""

    def __init__(
        self,
        run_store: RunStore,
        garbage: Garbage,
        manifests: Manifests,
        devices: Reach,
        traffic: TrafficMeter,
        counters: Counter[str],
        draw: Draw,
        wall: Wall,
    ) -> None:
        self._store = run_store.store
        self._housekeeping = Housekeeping(run_store, garbage, counters)
        self._rounds = Scheduler(
            run_store, devices, manifests.of, self._housekeeping, counters, traffic, draw, wall
        )
        self._settings = SettingsRollouts(self._store, wall)
        self._retry_at = math.inf  # finite if a run could not be read, which must be retried
        self._known: set[tuple[str, float]] | None = (
            None  # all runs, once loaded, by name and creation
        )

    @property
    def runs(self) -> dict[str, Run]:
        """Return all loaded runs, by name."""
        return {name: live.run for name, live in self._rounds.live.items()}

    @property
    def open(self) -> dict[str, OpenRound]:
        """Return the open rounds, by run."""
        return {current.row.run: current for current in self._rounds.open_rounds()}

    def load(self, runs: Sequence[RunRow], now: float) -> list[CloudEffect | Hint]:
        """Load runs that were added, ended or deleted, and answers that other processes have received.

        ``runs`` are the current rows of all runs. Raises ``StorageError``.
        """
        effects: list[CloudEffect | Hint] = []
        is_first, self._retry_at = self._known is None, math.inf
        if is_first:
            catch_up_all(self._store)
        effects += self._load_runs(runs, now)
        self._settings.load(now)
        if is_first:
            effects += self._housekeeping.started()
        for current in self._rounds.open_rounds():
            effects += self._rounds.refresh(current)
        return effects

    def connected(self, back_at: float) -> None:
        """Handle a new connection. Until ``back_at``, devices may still be coming back from an outage."""
        self._rounds.connected(back_at)

    def disconnected(self) -> None:
        """Handle the loss of the connection: every device is offline until its next hello."""
        self._rounds.disconnected()

    def hear(self, hint: ToLeader, now: float) -> list[CloudEffect | Hint]:
        """React to an ingest's hint."""
        return self._rounds.hear(hint, now)

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        again = self._retry_at if self._retry_at < math.inf else None
        due = self._rounds.timer(), self._housekeeping.timer(), self._settings.timer(), again
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float) -> list[CloudEffect | Hint]:
        """Perform everything that is due, and retry runs that could not be loaded."""
        effects: list[CloudEffect | Hint] = []
        if now >= self._retry_at:
            self._retry_at = math.inf
            try:
                effects += self._load_runs(self._store.runs(), now)
            except StorageError as exc:
                self._retry_at = now + DISK_RETRY_S
                effects.append(self._housekeeping.storage_failed(exc))
        try:
            effects += self._settings.poll(now)
        except StorageError as exc:
            effects.append(self._housekeeping.storage_failed(exc))
        return [*effects, *self._rounds.poll(now), *self._housekeeping.poll(now)]

    def _load_runs(self, rows: Sequence[RunRow], now: float) -> list[CloudEffect | Hint]:
        effects = list[CloudEffect | Hint]()
        known = {(row.run, row.created) for row in rows}
        for name, _ in sorted((self._known or set()) - known):
            effects += self._rounds.forget(name)
            self._housekeeping.schedule()
        self._known, self._rounds.serving = known, serving_run(rows)
        for row in rows:
            effects += self._load_run(row, now)
        return effects

    def _load_run(self, row: RunRow, now: float) -> list[CloudEffect | Hint]:
        live = self._rounds.live.get(row.run)
        is_new = live is None and (row.status == RUNNING or row is self._rounds.serving)
        # The stop before a resumption may have gone unnoticed.
        is_current = live is None or (live.run.status == RUNNING and live.run.is_current(row))
        is_resumed = row.status == RUNNING and not is_current
        if is_new or is_resumed:
            try:
                return self._rounds.add_run(row, now)
            except StorageError as exc:  # keep the other runs going
                self._retry_at = now + DISK_RETRY_S
                return [self._housekeeping.storage_failed(exc, row.run)]
        if live is not None and row.status != RUNNING and live.run.status == RUNNING:
            return self._rounds.stop(live)
        return []
