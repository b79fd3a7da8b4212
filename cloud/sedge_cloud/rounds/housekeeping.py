"""The coordinator's trouble with its disk: told and counted, and made good where that is possible.

What nothing refers to any more is collected at the start, when rounds close and, as a full disk would
keep them from closing, after every error of the disk. That goes through all blobs, so not every time.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from sedge_cloud.store.rows import OrderRow, UpdateRow
from sedge_cloud.store.runs import RunStore
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note

# After an error of the disk, what met it is tried again.
DISK_RETRY_S = 30.0


class Housekeeping:
    """The care of a coordinator's store; ``counters`` are the coordinator's."""

    def __init__(self, run_store: RunStore, counters: Counter[str]) -> None:
        self._run_store = run_store
        self._counters = counters
        self._wanted = False
        self._collect_at = 0.0

    def trouble(self, error: StorageError, run: str = "") -> Note:
        """The disk refused something, of this run if it was a run's."""
        self._wanted = True
        return self._told(error, run)

    def started(self) -> list[Note]:
        """The store has been taken over: what the process before left is collected."""
        return self._collect(self._run_store.collect)

    def closed(self, orders: int) -> list[Note]:
        """A round of so many orders has closed."""
        return self._collect(lambda: self._run_store.tidy(orders))

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        return self._collect_at if self._wanted else None

    def poll(self, now: float) -> list[Note]:
        """What was found lost; and room is made, if that is due."""
        found = [Note(logging.WARNING, text) for text in self._run_store.take_losses()]
        if self._wanted and now >= self._collect_at:
            self._wanted, self._collect_at = False, now + DISK_RETRY_S
            found += self._collect(self._run_store.collect)
        return found

    def reject_lost(self, accepted: Iterable[tuple[UpdateRow, OrderRow]]) -> Iterator[UpdateRow]:
        """Reject the updates that the disk has lost, or what they started from; gives those.

        A round's own model is not looked at: without it there is no update that could count.
        """
        store = self._run_store.store
        for update, order in accepted:
            blobs = (update.blob, order.model, order.context, order.patch_blob, order.patch_context)
            why = next(filter(None, (store.lost(blob) for blob in blobs if blob)), "")
            if why:
                detail = f"it was taken, and then lost by the coordinator's disk: {why}"[:1000]
                store.reject(update.run, update.round, update.device, "malformed", detail)
                self._counters["rejected"] += 1
                yield msgspec.structs.replace(update, rejected="malformed", detail=detail)

    def _collect(self, collect: Callable[[], object]) -> list[Note]:
        """Delete what nothing needs. What cannot be deleted does not keep us from our work."""
        try:
            collect()
        except StorageError as exc:
            return [self._told(exc)]
        return []

    def _told(self, error: StorageError, run: str = "") -> Note:
        self._counters["storage_errors"] += 1
        text = str(error)
        if run and not text.startswith((f"run {run}:", f"run {run},")):
            text = f"run {run}: {text}"
        return Note(logging.ERROR, text)
