"""Collects garbage and handles disk errors, which it logs, counts and, where possible, repairs.

Unreferenced blobs are collected at startup, when rounds close, and after a disk error, since a full disk
would keep rounds from closing. Because a collection examines every blob, it does not run after every round.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from sedge_cloud.disk_errors import DISK_RETRY_S, disk_error
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.rows import OrderRow, UpdateRow
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note


class Housekeeping:
    """Keeps a coordinator's store in order; ``counters`` are the coordinator's."""

    def __init__(self, run_store: RunStore, garbage: Garbage, counters: Counter[str]) -> None:
        self._run_store, self._garbage = run_store, garbage
        self._counters = counters
        self._wanted = False
        self._collect_at = 0.0

    def storage_failed(self, error: StorageError, run: str = "") -> Note:
        """Schedule a collection after a disk error, which may concern ``run``. Returns the note to log."""
        self._wanted = True
        return disk_error(self._counters, error, run)

    def schedule(self) -> None:
        """Schedule a collection because the operator has deleted a run, or a disk access has failed."""
        self._wanted = True

    def started(self) -> list[Note]:
        """Collect the garbage that the previous process left."""
        return self._collect(self._garbage.collect)

    def round_closed(self, orders: int) -> list[Note]:
        """Collect garbage if it is due after a round with this number of orders."""
        return self._collect(lambda: self._garbage.collect_if_due(orders))

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        return self._collect_at if self._wanted else None

    def poll(self, now: float) -> list[Note]:
        """Log client models that the disk has lost, and collect garbage if that is due."""
        notes = [Note(logging.WARNING, text) for text in self._run_store.take_losses()]
        if self._wanted and now >= self._collect_at:
            self._wanted, self._collect_at = False, now + DISK_RETRY_S
            notes += self._collect(self._garbage.collect)
        return notes

    def reject_lost(self, accepted: Iterable[tuple[UpdateRow, OrderRow]]) -> Iterator[UpdateRow]:
        """Reject, and yield, accepted updates that the disk has lost or that started from a lost blob.

        The round's own model is not checked, because without it no update could count.
        """
        store = self._run_store.store
        for update, order in accepted:
            blobs = (update.blob, order.model, order.context, order.patch_blob, order.patch_context)
            why = next(filter(None, (store.missing_reason(blob) for blob in blobs if blob)), "")
            if why:
                text = f"it was accepted, but the coordinator's disk lost it: {why}"
                rejected = update.refused("lost", text)
                store.reject(rejected)
                self._counters["rejected"] += 1
                yield rejected

    def _collect(self, collect: Callable[[], object]) -> list[Note]:
        """Run a garbage collection. A failure is logged and does not stop the coordinator."""
        try:
            collect()
        except StorageError as exc:
            return [disk_error(self._counters, exc)]
        return []
