"""The leader: draws cohorts, plans and opens rounds, closes them, and keeps the store in order.

It writes runs, rounds, orders, blobs of models, and what closed rounds add up to; by recorder.py also how
open rounds stand. It reads runs, and of its devices' ingests the receipts (``updates``), the declines
(``orders``) and, by ``Reach``, who is there. What it decides depends on these rows alone: hints.py only
says sooner that there are new ones.
"""

from collections import Counter

from sedge_cloud.clocks import Wall
from sedge_cloud.events import CloudEffect
from sedge_cloud.hints import Hint, ToLeader
from sedge_cloud.rounds.cohort import Draw
from sedge_cloud.rounds.housekeeping import Housekeeping
from sedge_cloud.rounds.lifecycle import OpenRound
from sedge_cloud.rounds.loading import Loading
from sedge_cloud.rounds.reach import Meter, Reach
from sedge_cloud.rounds.scheduler import Scheduler
from sedge_cloud.runs.manifests import Manifests
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore


class Leader:
    """The rounds of a fleet's runs. ``draw`` chooses a round's devices."""

    def __init__(
        self,
        run_store: RunStore,
        manifests: Manifests,
        devices: Reach,
        traffic: Meter,
        counters: Counter[str],
        draw: Draw,
        wall: Wall,
    ) -> None:
        self._housekeeping = Housekeeping(run_store, counters)
        self._rounds = Scheduler(
            run_store, devices, manifests.of, self._housekeeping, counters, traffic, draw, wall
        )
        self._loading = Loading(run_store.store, self._rounds, self._housekeeping)

    @property
    def runs(self) -> dict[str, Run]:
        """Every loaded run, by name."""
        return {name: live.run for name, live in self._rounds.live.items()}

    @property
    def open(self) -> dict[str, OpenRound]:
        """The open rounds, by run."""
        return {current.row.run: current for current in self._rounds.open_rounds()}

    def is_due(self, now: float) -> bool:
        """Whether ``load`` is due although no other process has changed anything."""
        return self._loading.is_due(now)

    def load(self, now: float) -> list[CloudEffect | Hint]:
        """Take over runs, and what other processes have received. Raises ``StorageError``."""
        return self._loading.load(now)

    def connected(self, back_at: float) -> None:
        """Devices may be coming back from an outage until this time."""
        self._rounds.connected(back_at)

    def disconnected(self) -> None:
        """Every device is offline until its next hello."""
        self._rounds.disconnected()

    def hear(self, hint: ToLeader, now: float) -> list[CloudEffect | Hint]:
        """What an ingest has done."""
        return self._rounds.hear(hint, now)

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        due = self._rounds.timer(), self._housekeeping.timer()
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float) -> list[CloudEffect | Hint]:
        """Everything that is due."""
        return [*self._rounds.poll(now), *self._housekeeping.poll(now)]
