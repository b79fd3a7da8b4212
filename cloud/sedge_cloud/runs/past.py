"""The history of a round's devices, read from rows with one statement per kind of row."""

from collections.abc import Collection, Mapping
from functools import cached_property

from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.rows import ClientModelRow


class Past:
    """The client models of these devices (``rows``, by device), with facts from their earlier rounds."""

    def __init__(self, run: Run, run_store: RunStore, devices: Collection[str]) -> None:
        self._run = run
        self._store = run_store.store
        self.rows: Mapping[str, ClientModelRow] = self._store.client_models(run.name, devices)
        rounds = {row.round for row in self.rows.values()}
        run_store.load_counted(run, rounds)
        self._models = self._store.round_models(run.name, rounds)

    def holds(self, row: ClientModelRow) -> bytes:
        """Return the hash of the model that a device's last update started from; b"" if unknown."""
        model, model_hash = self._models.get(row.round, (b"", b""))
        return model_hash if model == row.model else b""

    def was_asked_since(self, row: ClientModelRow) -> bool:
        """Return True if a device has had an order since its last update, and so may have a newer model."""
        return self._last_orders.get(row.device, 0) > row.round

    @cached_property
    def _last_orders(self) -> Mapping[str, int]:
        since = min((row.round for row in self.rows.values()), default=0)
        return self._store.last_orders(self._run.name, self.rows.keys(), since)
