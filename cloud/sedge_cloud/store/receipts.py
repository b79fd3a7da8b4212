"""Stores what results from arriving updates: receipts, small updates, and client models.

No round of a run can open or close while one of its receipts is written. So every update counts in exactly
one round, however many processes receive updates, and whichever of them closes the round. The round's row
counts its receipts: a process that has read them and then closes the round can tell whether more have
arrived since.
"""

import errno
import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from sedge_cloud.store.connection import Database
from sedge_cloud.store.contract import Dialect
from sedge_cloud.store.rows import LATE_ROUNDS, ClientModelRow, NewReceipt, RoundReceipts, UpdateRow
from sedge_cloud.store.schema import NAMED_UPDATES
from sedge_protocol.errors import StorageError

# Replaces a device's client model unless the stored one is from the same round or a later one.
_NEWER_CLIENT_MODEL = (
    f"INSERT INTO client_models VALUES ({','.join('?' * len(ClientModelRow.__struct_fields__))})"
    " ON CONFLICT (run, device) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in ClientModelRow.__struct_fields__)
    + " WHERE client_models.round < excluded.round"
)
# Inserts a receipt, unless the device has one in this round.
_NEW_UPDATE = (
    f"INSERT INTO updates VALUES ({','.join('?' * len(UpdateRow.__struct_fields__))})"
    " ON CONFLICT DO NOTHING"
)
# Selects a round's receipts, and late updates that arrived in some rounds; an OR would prevent both from
# using their indexes.
RECEIVED = (
    "SELECT * FROM updates WHERE run = ? AND round = ? UNION ALL SELECT * FROM updates"
    " WHERE run = ? AND late > 0 AND late BETWEEN ? AND ? AND rejected = '' ORDER BY round, device"
)
TOO_LATE = "round {} closed too long ago"
# Errors that mean that a file is lost for good: it does not exist, or its place on the disk is unreadable.
_GONE = (errno.ENOENT, errno.EIO)


class Receipts(Database):
    """Received updates as rows.

    Each method runs as one transaction and raises ``StorageError`` on failure.
    """

    def commit_receipts(self, new: Sequence[NewReceipt]) -> list[UpdateRow | StorageError]:
        """Call ``commit_receipt`` for each update in one transaction.

        Returns each update's row, or its error if it fails.

        Raises ``StorageError`` if the whole transaction fails; in that case nothing is written.
        """
        if len(new) == 1:  # a single receipt needs no savepoint
            return [self.commit_receipt(*new[0])]
        # Each receipt locks its run's open round. Sorting by run prevents a deadlock between two processes.
        places = sorted(range(len(new)), key=lambda place: new[place][0].run)
        with self._transaction() as db:
            stored = {at: self._alone(db, partial(self.commit_receipt, *new[at])) for at in places}
        return [stored[at] for at in range(len(new))]

    def update(self, run: str, number: int, device: str) -> UpdateRow | None:
        """Return one device's receipt in one round, for an accepted or rejected update, or None."""
        sql = "SELECT * FROM updates WHERE run = ? AND round = ? AND device = ?"
        return next(iter(self._rows(UpdateRow, sql, run, number, device)), None)

    def receipts(self, run: str, number: int) -> list[tuple[str, bool]]:
        """Return (device, whether its update was accepted) for a round's receipts, sorted by device."""
        sql = "SELECT device, rejected FROM updates WHERE run = ? AND round = ? ORDER BY device"
        with self._db.errors():
            rows = self._db.execute(sql, (run, number)).fetchall()
        return [(str(device), not rejected) for device, rejected in rows]

    def reject(self, row: UpdateRow) -> None:
        """Replace the receipt of an accepted update with this rejection."""
        with self._transaction() as db:
            self._require_run(db, row.run)
            self._count_receipt(db, row.run, row.late or row.round)
            db.execute(
                "UPDATE updates SET rejected = ?, detail = ? WHERE run = ? AND round = ? AND device = ?",
                (row.rejected, row.detail, row.run, row.round, row.device),
            )

    def commit_receipt(
        self, row: UpdateRow, client: ClientModelRow | None = None, small: bytes = b""
    ) -> UpdateRow:
        """Write a receipt and, if newer, the device's client model. Returns the stored receipt.

        A device's first receipt in a round is final: it is returned, and no other is written. Whether the
        update is late, or too late and so rejected, is decided here, while no round of the run can open or
        close. ``small`` is the update itself if it is not a blob: as a row it shares the receipt's flush,
        while a separate file would need two more flushes.
        """
        with self._transaction() as db:
            self._require_run(db, row.run)
            stored: UpdateRow | None = None
            if not self._count_receipt(db, row.run, row.round):
                stored = self.update(row.run, row.round, row.device)
                row = row if stored is not None or row.rejected else self._late(db, row)
            if (
                stored is None
                and not db.execute(_NEW_UPDATE, msgspec.structs.astuple(row)).rowcount
            ):
                stored = self.update(row.run, row.round, row.device)
            if stored is not None:
                return stored
            if small and not row.rejected:
                sql = "INSERT INTO small_updates VALUES (?, ?) ON CONFLICT DO NOTHING"
                db.execute(sql, (row.blob, small))
            if client is not None and not row.rejected:
                db.execute(_NEWER_CLIENT_MODEL, msgspec.structs.astuple(client))
        return row

    def received(self, run: str, number: int, since: int | None = None) -> RoundReceipts:
        """Return a round's receipts, and the late updates that arrived in rounds ``since`` to ``number``.

        By default, ``since`` is the round itself.
        """
        since = number if since is None else since
        rows = self._rows(UpdateRow, RECEIVED, run, number, run, since, number)
        own = [row for row in rows if row.round == number]
        return RoundReceipts(own, [row for row in rows if row.round != number])

    def update_blob(self, sha256: bytes) -> bytes:
        """Return the bytes of an accepted update, checked against their hash."""
        with self._db.errors():
            sql = "SELECT data FROM small_updates WHERE sha256 = ?"
            row = self._db.execute(sql, (sha256,)).fetchone()
        if row is None:
            return self.blobs.read(sha256)
        if hashlib.sha256(row[0]).digest() != sha256:
            raise StorageError(f"{self.place}: update {sha256.hex()} does not match its sha256")
        return bytes(row[0])

    def missing_reason(self, sha256: bytes) -> str:
        """Return why an update or other blob is lost for good; empty if it is not lost."""
        try:
            self.update_blob(sha256)
        except StorageError as exc:
            cause = exc.__cause__  # None if the bytes fail their hash
            if cause is None or (isinstance(cause, OSError) and cause.errno in _GONE):
                return str(exc)
        return ""

    def drop_small_updates(self) -> None:
        """Delete the small updates that nothing refers to."""
        with self._transaction() as db:
            db.execute(f"DELETE FROM small_updates WHERE sha256 NOT IN ({NAMED_UPDATES})")

    def _alone(self, db: Dialect, write: Callable[[], UpdateRow]) -> UpdateRow | StorageError:
        """Call ``write`` in the open transaction.

        Returns its result, or its error after undoing only ``write``.
        """
        db.execute("SAVEPOINT alone")
        result: UpdateRow | StorageError
        try:
            with db.errors():
                result = write()
        except StorageError as exc:
            if not db.in_transaction:  # the database rolled back everything
                raise
            db.execute("ROLLBACK TO SAVEPOINT alone")
            result = exc
        db.execute("RELEASE SAVEPOINT alone")
        return result

    def coming_round(self, run: str) -> int:
        """Return the number of a run's open round, or of its next one. Raises ``StorageError``."""
        with self._db.errors():
            sql = "SELECT MAX(round + 1 - open) FROM rounds WHERE run = ?"
            coming: int | None = self._db.execute(sql, (run,)).fetchone()[0]
        if coming is None:
            raise StorageError(f"run {run}: it has had no round")
        return coming

    def _late(self, db: Dialect, row: UpdateRow) -> UpdateRow:
        """Return the receipt of an update whose round has closed; a rejection if it closed too long ago."""
        coming = self.coming_round(row.run)
        if row.round + LATE_ROUNDS < coming:
            return row.refused("stale", TOO_LATE.format(row.round))
        self._count_receipt(db, row.run, coming)
        return msgspec.structs.replace(row, late=coming)

    def _count_receipt(self, db: Dialect, run: str, number: int) -> bool:
        """Lock the round that a receipt belongs to, and count the receipt.

        Returns whether the round is open.
        """
        sql = "UPDATE rounds SET receipts = receipts + 1 WHERE run = ? AND round = ? AND open = 1"
        return bool(db.execute(sql, (run, number)).rowcount)
