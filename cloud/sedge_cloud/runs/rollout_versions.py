"""Determines which version of a bundle or of settings the rollouts give each device.

A device's rank, a hash of its id, decides in which phase it is added, so the devices of earlier phases stay
in a rollout when a phase adds more.
"""

import hashlib

from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rollouts import RolloutProgress, RolloutRow


def rank(row: RolloutRow, device: str) -> int:
    """Return a device's place in a rollout, below 2**63."""
    digest = hashlib.sha256(f"{row.run}/{row.number}/{device}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Versions:
    """Decides which version each device gets from the rollouts of a run or of settings, newest first."""

    def __init__(self, run: str, store: Rows) -> None:
        self._store = store
        self._given = list[tuple[RolloutRow, RolloutProgress, set[str] | None]]()
        for row in reversed(store.rollouts(run)):
            if row.state in ("in_progress", "succeeded"):
                where = row.read_plan().where
                among = set(store.eligible(where)) if where else None
                self._given.append((row, row.read_progress(), among))

    def look(self, device: str) -> None:
        """Update which rollouts' conditions a device matches, which its last hello may have changed."""
        for row, _, among in self._given:
            if among is not None:
                among.discard(device)
                among.update(self._store.eligible(row.read_plan().where, [device]))

    def bundle(self, device: str) -> bytes:
        """Return the blob of a device's bundle; b"" for the run's own bundle."""
        row = self.row(device)
        return b"" if row is None else row.bundle

    def row(self, device: str) -> RolloutRow | None:
        """Return the rollout that applies to a device; None if none does."""
        for row, progress, among in self._given:
            bound = progress.bounds[-1] if progress.bounds else -1
            is_in = device not in progress.failed and rank(row, device) <= bound
            if is_in and (among is None or device in among):
                return row
        return None
