"""What a state folder keeps: runs that have ended are deleted whole, of old rounds only the devices' parts.

A running run is never deleted, nor the newest finished one, which newcomers still get their model from.
"""

from collections.abc import Callable
from typing import NamedTuple

from sedge_cloud.config import KeepConfig
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import RunRow

FINISHED = "finished"


class Pruned(NamedTuple):
    """The runs that are deleted, oldest first, and the rows of old rounds."""

    runs: tuple[str, ...] = ()
    rows: int = 0


def prune(
    store: Rows, keep: KeepConfig, named_blobs: Callable[[], set[bytes]], dry_run: bool = False
) -> Pruned:
    """Delete what ``keep`` does not allow, in one transaction; with ``dry_run`` only find out what.

    ``named_blobs`` gives every blob that the store refers to. Blobs that nothing refers to any more are
    for the next collection.
    """
    if keep == KeepConfig():
        return Pruned()
    gone: list[str] = []
    with store.transaction(dry_run):
        runs, rows = store.runs(), 0
        if keep.rounds is not None:
            rows = sum(store.delete_old_rows(row.run, keep.rounds) for row in runs)
        candidates = _candidates(runs)
        if keep.runs is not None:
            ended = sum(row.has_ended for row in runs)
            for row in candidates[: max(0, ended - keep.runs)]:
                store.delete_run(row.run)
                gone.append(row.run)
        if keep.gigabytes is not None:
            sizes = store.blobs.sizes()
            for row in candidates[len(gone) :]:
                used = sum(sizes.get(sha256, 0) for sha256 in named_blobs()) + store.used_bytes()
                if used <= keep.gigabytes * 1e9:
                    break
                store.delete_run(row.run)
                gone.append(row.run)
    return Pruned(tuple(gone), rows)


def _candidates(runs: list[RunRow]) -> list[RunRow]:
    """The runs that may be deleted, oldest first."""
    newest = next((row.run for row in reversed(runs) if row.status == FINISHED), None)
    return [row for row in runs if row.has_ended and row.run != newest]
