"""Loads the runs that an ingest serves, each from its row when it is first needed."""

from collections.abc import Iterable

from sedge_cloud.runs.run import Run
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import RunRow
from sedge_protocol.errors import StorageError

RUNNING = "running"


class Runs:
    """Runs by name.

    Of a run's state, only the policy may be used: the rest of it changes with every round, and only a run
    that was replaced or resumed is reloaded.
    """

    def __init__(self, store: Rows) -> None:
        self._store = store
        self._loaded: dict[str, Run] = {}
        self._statuses: dict[str, str] = {}

    def load(self, runs: Iterable[RunRow]) -> None:
        """Update the list of all runs. A run that was replaced or resumed is reloaded when next needed."""
        rows = {row.run: row for row in runs}
        self._statuses = {name: row.status for name, row in rows.items()}
        for name, run in list(self._loaded.items()):
            row = rows.get(name)
            if row is None or not run.is_current(row):
                del self._loaded[name]

    def status(self, name: str) -> str:
        """Return a run's status as of the last ``load``; "" if there is no such run."""
        return self._statuses.get(name, "")

    def get(self, name: str) -> Run | None:
        """Return a run, even an ended one; None if there is no such run. Raises ``StorageError``."""
        if name not in self._loaded and name in self._statuses:
            row = next((row for row in self._store.runs() if row.run == name), None)
            if row is not None:
                self._loaded[name] = Run(row, self._store)
        return self._loaded.get(name)

    def running(self) -> list[Run]:
        """Return all readable runs that have not ended; the leader reports why others cannot be read."""
        found: list[Run] = []
        for name in [name for name, status in self._statuses.items() if status == RUNNING]:
            try:
                run = self.get(name)
            except StorageError:
                continue
            found += [] if run is None else [run]
        return found
