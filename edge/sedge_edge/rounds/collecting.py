"""Deletes blobs that are no longer needed, and runs that exceed the limits in [keep]."""

import logging
from collections import Counter

from sedge_edge.jobs.storage import Blobs
from sedge_edge.rounds.retention import Retention
from sedge_edge.rounds.state import DISK_RETRY_S, StateStore
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note


class Collecting:
    """Deletes unneeded blobs whenever the set of needed ones has changed.

    Do not call ``poll`` during a job, which may be writing blobs that the state does not name yet.
    """

    def __init__(
        self, store: StateStore, blobs: Blobs, retention: Retention, counters: Counter[str]
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._retention = retention
        self._counters = counters
        self._needed: set[bytes] | None = None  # at the last collection
        self._not_before = 0.0

    def job_ended(self) -> None:
        """Collect again, because a job has ended and may have left blobs that nothing needs."""
        self._needed = None

    def poll(self, now: float) -> list[Note]:
        """Delete blobs that are no longer needed. A file that cannot be deleted is skipped."""
        if now < self._not_before:
            return []
        gone: tuple[str, ...] = ()
        store, blobs = self._store, self._blobs
        try:
            needed = store.needed(blobs)
            if needed != self._needed:
                gone = self._retention.surplus(store.state, lambda state: state.needed(blobs))
                if gone:
                    store.delete_runs(gone)
                    needed = store.needed(blobs)
                blobs.collect(needed, 0.0)
        except StorageError as exc:
            self._not_before = now + DISK_RETRY_S
            self._counters["storage_errors"] += 1
            return [Note(logging.ERROR, str(exc))]
        self._needed = needed
        return [Note(logging.INFO, f"deleted run {run} and its model: [keep]") for run in gone]
