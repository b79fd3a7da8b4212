"""Observations of devices, coordinator and disk as rows, written in batches.

``changed`` in the rows of devices, sessions and histories is the number of the transaction that last wrote
them. So a reader that has seen all changes up to some number only needs to query later ones.
"""

from collections.abc import Collection, Sequence

import msgspec

from sedge_cloud.store.connection import Database
from sedge_cloud.store.contract import MOST_ROWS, Dialect
from sedge_cloud.store.records import Accounts
from sedge_cloud.store.rows import (
    CoordinatorRow,
    DeviceRow,
    DiskRow,
    HistoryRow,
    RoundRow,
    SessionRow,
    TrafficRow,
)
from sedge_cloud.store.schema import LEADER

KEPT_S = 7 * 86_400.0
# The columns of an open round that the recorder updates.
_STANDING = ("phase", "ends_at", "deadline", "needed", "extended")


class Observed(Database):
    """Observations as rows. Each method runs as one transaction and raises ``StorageError`` on failure."""

    def save_observations(
        self,
        sessions: Sequence[SessionRow],
        rounds: Sequence[RoundRow],
        coordinator: CoordinatorRow,
        disk: DiskRow | None = None,
        traffic: Sequence[TrafficRow] = (),
    ) -> None:
        """Store changes to sessions, open rounds' progress, the coordinator, disk size and traffic.

        Measurements are kept for a week. Nothing is flushed, so after a power cut the rows may be slightly
        out of date.
        """
        with self._transaction(flush=False, quiet=not (sessions or rounds)) as db:
            self._put_sessions(db, sessions)
            for standing in rounds:
                names = ", ".join(f"{name} = ?" for name in _STANDING)
                values = [getattr(standing, name) for name in _STANDING]
                sql = f"UPDATE rounds SET {names} WHERE run = ? AND round = ? AND open = 1"
                db.execute(sql, (*values, standing.run, standing.round))
            self._put(db, "coordinator", coordinator)
            self._save_traffic(db, traffic)
            if disk is not None:
                self._put(db, "disk", disk)
                db.execute("DELETE FROM disk WHERE at < ?", (disk.at - KEPT_S,))

    def save_sessions(self, sessions: Sequence[SessionRow]) -> None:
        """Store changed sessions. Nothing is flushed."""
        with self._transaction(flush=False) as db:
            self._put_sessions(db, sessions)

    def _save_traffic(self, db: Dialect, rows: Sequence[TrafficRow]) -> None:
        sets = (
            "up = excluded.up, down = excluded.down,"
            " whole = CASE WHEN excluded.whole = 1 THEN 1 ELSE traffic.whole END"
        )
        self._put(db, "traffic", *rows, keys=3, sets=sets)

    def _put_sessions(self, db: Dialect, sessions: Sequence[SessionRow]) -> None:
        changed = self._stamp(db) if sessions else 0
        rows = [msgspec.structs.replace(row, changed=changed) for row in sessions]
        self._put(db, "sessions", *rows)

    def sessions(self, since: int, most: int = MOST_ROWS) -> list[SessionRow]:
        """Return sessions that changed after the transaction ``since``, oldest change first."""
        sql = "SELECT * FROM sessions WHERE changed > ? ORDER BY changed DESC, device DESC LIMIT ?"
        return self._rows(SessionRow, sql, since, most)[::-1]

    def changed_devices(self, since: int, most: int = MOST_ROWS) -> list[DeviceRow]:
        """Return devices that changed after the transaction ``since``, oldest change first."""
        sql = "SELECT * FROM devices WHERE changed > ? ORDER BY changed DESC, device DESC LIMIT ?"
        return self._rows(DeviceRow, sql, since, most)[::-1]

    def histories(self, since: int, most: int) -> list[HistoryRow]:
        """Return histories that changed after the transaction ``since``, oldest change first."""
        sql = (
            "SELECT * FROM histories WHERE changed > ?"
            " ORDER BY changed DESC, run DESC, device DESC LIMIT ?"
        )
        return self._rows(HistoryRow, sql, since, most)[::-1]

    def sessions_named(self, names: Collection[str]) -> list[SessionRow]:
        """Return the sessions of these devices."""
        return self._named(SessionRow, "SELECT * FROM sessions WHERE device IN ({})", names)

    def histories_named(self, names: Collection[str]) -> list[HistoryRow]:
        """Return the histories of these devices, oldest change first."""
        sql = "SELECT * FROM histories WHERE device IN ({}) ORDER BY changed, run, device"
        return self._named(HistoryRow, sql, names)

    def coordinator(self) -> CoordinatorRow:
        """Return the row of the leading process; a default row if no process has ever run."""
        return next(iter(self.coordinators()), CoordinatorRow())

    def coordinators(self) -> list[CoordinatorRow]:
        """Return the serving processes: the leader first, then by most recent heartbeat."""
        names = ", ".join(f"c.{name}" for name in CoordinatorRow.__struct_fields__)
        sql = (
            f"SELECT {names} FROM coordinator c LEFT JOIN leases l ON l.name = ? AND l.token = c.id"
            " ORDER BY CASE WHEN l.name IS NULL THEN 1 ELSE 0 END, c.heard DESC, c.id DESC"
        )
        return self._rows(CoordinatorRow, sql, LEADER)

    def disk(self) -> list[DiskRow]:
        """Return the disk measurements of the last week, oldest first."""
        return self._rows(DiskRow, "SELECT * FROM disk ORDER BY at")

    def change(self) -> int:
        """Return the number of the last transaction that changed a device, session or history."""
        with self._db.errors():
            row = self._db.execute("SELECT value FROM meta WHERE key = 'change'").fetchone()
        return int(row[0])

    def account(self, it: Accounts) -> None:
        """Store the totals of a round that was closed without them."""
        with self._transaction() as db:
            sql = "UPDATE rounds SET parts = ? WHERE run = ? AND round = ?"
            db.execute(sql, (it.parts, it.run, it.round))
            db.execute("UPDATE runs SET sums = ? WHERE run = ?", (it.sums, it.run))
            self._put_histories(db, it.histories)

    def _put_histories(self, db: Dialect, rows: Sequence[HistoryRow]) -> None:
        changed = self._stamp(db)
        rows = [msgspec.structs.replace(row, changed=changed) for row in rows]
        self._put(db, "histories", *rows, keys=2)

    def unaccounted(self, run: str, since: int) -> list[RoundRow]:
        """Return a run's closed rounds after round ``since``."""
        sql = "SELECT * FROM rounds WHERE run = ? AND round > ? AND open = 0 ORDER BY round"
        return self._rows(RoundRow, sql, run, since)

    def sums(self, run: str) -> bytes:
        """Return the encoded totals of a run's closed rounds; empty if there are none, or no such run."""
        with self._db.errors():
            row = self._db.execute("SELECT sums FROM runs WHERE run = ?", (run,)).fetchone()
        return bytes(row[0]) if row else b""

    def pasts(self, run: str, devices: Collection[str]) -> dict[str, bytes]:
        """Return these devices' encoded histories in a run, by device; devices with none are left out."""
        sql = "SELECT device, past FROM histories WHERE run = ? AND device IN ({}) ORDER BY device"
        rows = self._among(sql, run, sorted(devices))
        return {str(device): bytes(past) for device, past in rows}

    def answers(self, run: str, number: int) -> list[tuple[str, str]]:
        """Return (device, its reason for declining or "") for a round's orders, sorted by device."""
        sql = "SELECT device, declined FROM orders WHERE run = ? AND round = ? ORDER BY device"
        with self._db.errors():
            rows = self._db.execute(sql, (run, number)).fetchall()
        return [(str(device), str(why)) for device, why in rows]

    def last_rounds(self, run: str, after: int, most: int) -> list[RoundRow]:
        """Return the last ``most`` of a run's rounds after ``after``, oldest first, without summaries."""
        fields = RoundRow.__struct_fields__
        names = ", ".join("NULL" if name == "summary" else name for name in fields)
        sql = f"SELECT {names} FROM rounds WHERE run = ? AND round > ? ORDER BY round DESC LIMIT ?"
        return self._rows(RoundRow, sql, run, after, most)[::-1]

    def set_terms(self, run: str, terms: bytes) -> None:
        """Store a run's requirements on devices."""
        with self._transaction() as db:
            db.execute("UPDATE runs SET terms = ? WHERE run = ?", (terms, run))
