"""What has been seen of devices, coordinator and disk, as rows: written in batches, read by whoever looks.

``changed`` in the rows of devices, sessions and histories is the number of the transaction that wrote them
last. So a reader that has seen all changes up to one number asks for the later ones only.
"""

from collections.abc import Sequence

import msgspec

from sedge_cloud.store.connection import Database
from sedge_cloud.store.rows import (
    CoordinatorRow,
    DeviceRow,
    DiskRow,
    HistoryRow,
    RoundRow,
    SessionRow,
)

# What a recorder writes anew of an open round.
_STANDING = ("phase", "ends_at", "deadline", "needed", "extended")


class Observed(Database):
    """What has been seen. Every method is one transaction, or raises ``StorageError``."""

    def seen(
        self,
        sessions: Sequence[SessionRow],
        rounds: Sequence[RoundRow],
        coordinator: CoordinatorRow,
        disk: DiskRow | None = None,
    ) -> None:
        """Store what has changed: sessions, how open rounds stand, the coordinator, a measurement.

        Nothing is flushed: after a power cut the rows may be those of a moment before.
        """
        with self._transaction() as db:
            if sessions:
                changed = self._stamp(db)
                for row in sessions:
                    self._put(db, "sessions", msgspec.structs.replace(row, changed=changed))
            for standing in rounds:
                names = ", ".join(f"{name} = ?" for name in _STANDING)
                values = [getattr(standing, name) for name in _STANDING]
                sql = f"UPDATE rounds SET {names} WHERE run = ? AND round = ? AND open = 1"
                db.execute(sql, (*values, standing.run, standing.round))
            self._put(db, "coordinator", coordinator)
            if disk is not None:
                self._put(db, "disk", disk)

    def sessions(self, since: int = -1) -> list[SessionRow]:
        """What has been seen of the devices that changed after the transaction ``since``, by id."""
        sql = "SELECT * FROM sessions WHERE changed > ? ORDER BY device"
        return self._rows(SessionRow, sql, since)

    def changed_devices(self, since: int = -1) -> list[DeviceRow]:
        """The devices that changed after the transaction ``since``, by id."""
        sql = "SELECT * FROM devices WHERE changed > ? ORDER BY device"
        return self._rows(DeviceRow, sql, since)

    def histories(self, since: int = -1) -> list[HistoryRow]:
        """The histories that changed after the transaction ``since``, by device and run."""
        sql = "SELECT * FROM histories WHERE changed > ? ORDER BY device, run"
        return self._rows(HistoryRow, sql, since)

    def coordinator(self) -> CoordinatorRow:
        """The service as it was last seen; a fresh row if there never was one."""
        rows = self._rows(CoordinatorRow, "SELECT * FROM coordinator")
        return rows[0] if rows else CoordinatorRow()

    def disk(self, since: float) -> list[DiskRow]:
        """The measurements since a time on the wall clock, the oldest first."""
        return self._rows(DiskRow, "SELECT * FROM disk WHERE at >= ? ORDER BY at", since)
