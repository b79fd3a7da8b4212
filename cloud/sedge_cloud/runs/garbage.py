"""Deletes ended runs that ``[keep]`` does not keep, and blobs that nothing refers to.

Runs are deleted completely; old rounds only lose their per-device rows. A running run is never deleted, nor
is the run that finished last, which newcomers still get their model from.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sedge_cloud.config import KeepConfig
from sedge_cloud.runs.run import state_of
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import RunRow
from sedge_cloud.store.schema import FINISHED

# A blob is written before the row that names it, sometimes by a command that runs while the service does.
# So a blob younger than this is not collected even if no row names it.
ORPHAN_AGE_S = 60.0
# Parts of uploads are kept for a day, as a device may lose its connection during an upload and
# return the next day.
PART_AGE_S = 86_400.0


class Pruned(NamedTuple):
    """The names of deleted runs, oldest first, and how many rows of old rounds were deleted."""

    runs: tuple[str, ...] = ()
    rows: int = 0


class Garbage:
    """Deletes data that a store no longer needs. ``keep`` limits how much of ended runs is kept.

    ``deleted_runs`` counts the runs that were deleted because of it.
    """

    def __init__(self, store: Rows, keep: KeepConfig | None = None) -> None:
        self._store = store
        self._keep = keep or KeepConfig()
        self._written = self._kept = self.deleted_runs = 0

    def named_blobs(self) -> set[bytes]:
        """Return all blobs that the store refers to."""
        named = self._store.named_blobs()
        for row in self._store.runs():
            named |= state_of(row).blobs()
            named.update(row.bundles)
        return named - {b""}

    def prune(self, dry_run: bool = False) -> Pruned:
        """Delete the rows that ``keep`` does not allow, in one transaction; if ``dry_run``, only list them.

        Blobs that nothing refers to any more are left for the next collection.
        """
        if self._keep == KeepConfig():
            return Pruned()
        gone: list[str] = []
        # Listed before the transaction, as listing may take long and a server ends an idle transaction.
        sizes = {} if self._keep.gigabytes is None else self._store.blobs.sizes()
        with self._store.transaction(dry_run):
            runs, rows = self._store.runs(), 0
            if self._keep.rounds is not None:
                rows = sum(self._store.delete_old_rows(row.run, self._keep.rounds) for row in runs)
            candidates = _candidates(runs)
            if self._keep.runs is not None:
                ended = sum(row.has_ended for row in runs)
                for row in candidates[: max(0, ended - self._keep.runs)]:
                    self._store.delete_run(row.run)
                    gone.append(row.run)
            if self._keep.gigabytes is not None:
                for row in candidates[len(gone) :]:
                    used = self.used_bytes(sizes) + self._store.used_bytes()
                    if used <= self._keep.gigabytes * 1e9:
                        break
                    self._store.delete_run(row.run)
                    gone.append(row.run)
        self.deleted_runs += 0 if dry_run else len(gone)
        return Pruned(tuple(gone), rows)

    def used_bytes(self, sizes: Mapping[bytes, int]) -> int:
        """Return the total size of the blobs that the store refers to; ``sizes`` has every blob's size."""
        return sum(sizes.get(sha256, 0) for sha256 in self.named_blobs())

    def collect(self) -> int:
        """Delete rows that ``keep`` does not allow, and unreferenced blobs. Returns the bytes freed."""
        with self._store.may_collect() as may:
            if not may:  # not while a backup is being written
                return 0
            freed = self._collect()  # first, as on a full object store no transaction can commit
            if any(self.prune()):
                freed += self._collect()
            # Last, as on a full disk it needs the space just freed.
            self._store.drop_small_updates()
        return freed

    def _collect(self) -> int:
        keep = self.named_blobs()
        self._written, self._kept = 0, len(keep)
        return self._store.blobs.collect(keep, ORPHAN_AGE_S, PART_AGE_S)

    def collect_if_due(self, orders: int) -> None:
        """Count a closed round's orders, and collect once they reach the number of blobs kept last time.

        An update leaves up to three blobs behind: itself, its mask, and its device's arrays. So garbage
        stays within a small multiple of the blobs in use, and the cost of collecting per update does not
        grow with the fleet.
        """
        self._written += orders
        if self._written >= self._kept:
            self.collect()


def _candidates(runs: list[RunRow]) -> list[RunRow]:
    """Return the runs that may be deleted, oldest first."""
    newest = next((row.run for row in reversed(runs) if row.status == FINISHED), None)
    return [row for row in runs if row.has_ended and row.run != newest]
