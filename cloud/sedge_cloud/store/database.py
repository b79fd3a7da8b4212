"""The coordinator's state on disk: one SQLite database and a folder of blobs.

SQLite runs in WAL mode with synchronous=FULL: a transaction that returned survives power loss. Blobs are
written and flushed before the transaction that names them, so a row never names a missing blob; blobs that
a crash leaves unnamed are collected. The command line writes here too, while the service runs, which
notices by ``data_version``. This file owns sqlite3.
"""

import errno
import hashlib
import os
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from sedge_cloud.store.rows import (
    ClientModelRow,
    DeviceRow,
    OrderRow,
    RoundRow,
    RunRow,
    TrafficRow,
    UpdateRow,
)
from sedge_cloud.store.schema import NAMED_UPDATES, SCHEMA, TABLES, named_blobs_sql, steps_of
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.disk import FILE_MODE, opened
from sedge_protocol.wire.frame import next_incarnation

# How long one process waits for another's transaction, in seconds.
BUSY_S = 10.0
# An update may be this many rounds late and still be accepted.
LATE_ROUNDS = 3
# Errors that say a file is lost for good: it does not exist, or its place on the disk has gone bad.
_GONE = (errno.ENOENT, errno.EIO)

R = TypeVar("R", bound=msgspec.Struct)


class Store:
    """The coordinator's state. Every method is one transaction and raises ``StorageError`` when it fails.

    Without ``durable`` nothing is flushed: writes survive the end of the process, but a power cut may
    damage the database. That is for emulation and simulation only.
    """

    def __init__(self, folder: Path, durable: bool = True) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            raise StorageError(f"state folder {folder}: {exc}") from exc
        self.blobs = BlobFolder(folder, durable=durable)
        self._path = folder / "sedge.sqlite"
        with self._errors():
            # Before SQLite opens it: the -wal and -shm files get the database's own mode.
            with opened(self._path, os.O_RDWR | os.O_CREAT) as descriptor:
                os.fchmod(descriptor, FILE_MODE)
            self._db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        try:
            with self._errors():
                self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
                self._use_wal()
                self._open_schema()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def check(self) -> None:
        """Read the whole database. Raises ``StorageError`` when it is damaged."""
        with self._errors():
            verdict = str(self._db.execute("PRAGMA quick_check").fetchone()[0])
        if verdict != "ok":
            raise StorageError(f"{self._path}: {verdict}")

    def version(self) -> int:
        """A number that changes whenever another process has committed something."""
        with self._errors():
            row = self._db.execute("PRAGMA data_version").fetchone()
        return int(row[0])

    def next_incarnation(self, clock: int) -> int:
        """The coordinator's own incarnation: larger than ever before, and at least a plausible clock's."""
        with self._transaction() as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'incarnation'").fetchone()
            incarnation = next_incarnation(int(row[0]), clock)
            db.execute("UPDATE meta SET value = ? WHERE key = 'incarnation'", (incarnation,))
        return incarnation

    def devices(self) -> list[DeviceRow]:
        """Every device ever enrolled, by id."""
        return self._rows(DeviceRow, "SELECT * FROM devices ORDER BY device")

    def enrolled(self) -> int:
        """How many devices are enrolled and not revoked."""
        with self._errors():
            row = self._db.execute("SELECT COUNT(*) FROM devices WHERE revoked = 0").fetchone()
        return int(row[0])

    def add_device(self, device: str, secret: bytes) -> None:
        """Enrol a device. Raises ``ConfigError`` when the id is taken."""
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM devices WHERE device = ?", (device,)).fetchone():
                raise ConfigError("device", device, "an id that is not enrolled yet")
            db.execute("INSERT INTO devices (device, secret) VALUES (?, ?)", (device, secret))

    def revoke_device(self, device: str) -> None:
        """Never listen to a device again. Raises ``ConfigError`` when there is no such device."""
        with self._transaction() as db:
            changed = db.execute("UPDATE devices SET revoked = 1 WHERE device = ?", (device,))
            if not changed.rowcount:
                raise ConfigError("device", device, "an enrolled device")

    def reissue_device(self, device: str, secret: bytes) -> None:
        """Give a device a new secret, even a revoked one; its incarnation restarts from 0.

        Raises ``ConfigError`` when there is no such device.
        """
        sql = "UPDATE devices SET secret = ?, revoked = 0, incarnation = 0, hello = NULL WHERE device = ?"
        with self._transaction() as db:
            if not db.execute(sql, (secret, device)).rowcount:
                raise ConfigError("device", device, "an enrolled device")

    def save_hello(self, row: DeviceRow, incarnation: int, hello: bytes) -> None:
        """Store a device's newest incarnation and hello, unless its secret has changed meanwhile."""
        sql = "UPDATE devices SET incarnation = ?, hello = ? WHERE device = ? AND secret = ?"
        with self._transaction() as db:
            db.execute(sql, (incarnation, hello, row.device, row.secret))

    def runs(self) -> list[RunRow]:
        """Every run, oldest first."""
        return self._rows(RunRow, "SELECT * FROM runs ORDER BY created, run")

    def add_run(self, row: RunRow) -> None:
        """Begin a run. Raises ``ConfigError`` when the name is taken."""
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM runs WHERE run = ?", (row.run,)).fetchone():
                raise ConfigError("run", row.run, "a name that no run has yet")
            self._insert(db, "runs", row)

    def set_status(self, run: str, status: str) -> None:
        """Change a running run's status. Raises ``ConfigError`` when there is no such run."""
        sql = "UPDATE runs SET status = ? WHERE run = ? AND status = 'running'"
        with self._transaction() as db:
            if not db.execute(sql, (status, run)).rowcount:
                raise ConfigError("run", run, "the name of a running run")

    def rounds(self, run: str) -> list[RoundRow]:
        """A run's rounds in order."""
        return self._rows(RoundRow, "SELECT * FROM rounds WHERE run = ? ORDER BY round", run)

    def current_round(self, run: str) -> RoundRow | None:
        """The round that is open."""
        sql = "SELECT * FROM rounds WHERE run = ? AND open = 1 ORDER BY round"
        return next(iter(self._rows(RoundRow, sql, run)), None)

    def round(self, run: str, number: int) -> RoundRow | None:
        """One round."""
        sql = "SELECT * FROM rounds WHERE run = ? AND round = ?"
        return next(iter(self._rows(RoundRow, sql, run, number)), None)

    def open_round(self, row: RoundRow, orders: Sequence[OrderRow]) -> None:
        """Store a round and all of its orders."""
        with self._transaction() as db:
            self._insert(db, "rounds", row)
            for order in orders:
                self._insert(db, "orders", order)

    def close_round(self, run: str, number: int, summary: bytes, state: bytes, status: str) -> None:
        """Close a round: its summary, and the run's next state and status.

        Orders for which no update is accepted any more are emptied; their rows stay.
        """
        with self._transaction() as db:
            db.execute(
                "UPDATE orders SET patch = x'', work = x'' WHERE run = ? AND round = ?",
                (run, number - LATE_ROUNDS - 1),
            )
            db.execute(
                "UPDATE rounds SET open = 0, summary = ? WHERE run = ? AND round = ?",
                (summary, run, number),
            )
            db.execute(
                "UPDATE runs SET state = ?, status = CASE status WHEN 'stopped' THEN status ELSE ? END"
                " WHERE run = ?",
                (state, status, run),
            )

    def orders(self, run: str, number: int) -> list[OrderRow]:
        """The orders of a round, by device."""
        sql = "SELECT * FROM orders WHERE run = ? AND round = ? ORDER BY device"
        return self._rows(OrderRow, sql, run, number)

    def order(self, run: str, number: int, device: str) -> OrderRow | None:
        """One device's order."""
        sql = "SELECT * FROM orders WHERE run = ? AND round = ? AND device = ?"
        return next(iter(self._rows(OrderRow, sql, run, number, device)), None)

    def decline(self, run: str, number: int, device: str, reason: str) -> None:
        """Note that a device declines its order."""
        with self._transaction() as db:
            db.execute(
                "UPDATE orders SET declined = ? WHERE run = ? AND round = ? AND device = ?",
                (reason, run, number, device),
            )

    def updates(self, run: str, number: int) -> list[UpdateRow]:
        """The updates that count in a round, by device: neither rejected nor late."""
        sql = (
            "SELECT * FROM updates WHERE run = ? AND round = ? AND rejected = '' AND late = 0"
            " ORDER BY device"
        )
        return self._rows(UpdateRow, sql, run, number)

    def late_updates(self, run: str, since: int, number: int) -> list[UpdateRow]:
        """Late updates that came during the rounds ``since`` to ``number``, the oldest round's first."""
        sql = (
            "SELECT * FROM updates WHERE run = ? AND late BETWEEN ? AND ? AND rejected = ''"
            " ORDER BY round, device"
        )
        return self._rows(UpdateRow, sql, run, since, number)

    def rejected(self, run: str, number: int) -> list[UpdateRow]:
        """The rejected updates of a round, by device."""
        sql = "SELECT * FROM updates WHERE run = ? AND round = ? AND rejected != '' ORDER BY device"
        return self._rows(UpdateRow, sql, run, number)

    def newcomers(self, run: str, number: int) -> set[str]:
        """The devices whose first order in the run is of this round."""
        sql = (
            "SELECT device FROM orders o WHERE run = ? AND round = ? AND NOT EXISTS"
            " (SELECT 1 FROM orders e WHERE e.run = o.run AND e.device = o.device AND e.round < o.round)"
        )
        with self._errors():
            return {str(row[0]) for row in self._db.execute(sql, (run, number))}

    def save_traffic(self, rows: Sequence[TrafficRow]) -> None:
        """Store the devices' bytes in a round."""
        with self._transaction() as db:
            for row in rows:
                self._insert(db, "traffic", row, "INSERT OR REPLACE")

    def traffic(self, run: str, number: int) -> list[TrafficRow]:
        """The devices' bytes in a round, by device."""
        sql = "SELECT * FROM traffic WHERE run = ? AND round = ? ORDER BY device"
        return self._rows(TrafficRow, sql, run, number)

    def update(self, run: str, number: int, device: str) -> UpdateRow | None:
        """One device's receipt in one round, good or bad."""
        sql = "SELECT * FROM updates WHERE run = ? AND round = ? AND device = ?"
        return next(iter(self._rows(UpdateRow, sql, run, number, device)), None)

    def reject(self, run: str, number: int, device: str, reason: str, detail: str) -> None:
        """Turn an accepted update into a rejected one."""
        with self._transaction() as db:
            db.execute(
                "UPDATE updates SET rejected = ?, detail = ? WHERE run = ? AND round = ? AND device = ?",
                (reason, detail, run, number, device),
            )

    def receive(self, row: UpdateRow, client: ClientModelRow | None, small: bytes = b"") -> None:
        """Write a receipt together with the device's new client model, if that is newer.

        ``small`` is the update itself where it is not in the blob folder: here it shares the receipt's
        flush, while a file of its own would take two more.
        """
        with self._transaction() as db:
            self._insert(db, "updates", row)
            if small:
                db.execute("INSERT OR IGNORE INTO small_updates VALUES (?, ?)", (row.blob, small))
            if client is not None:
                last = db.execute(
                    "SELECT round FROM client_models WHERE run = ? AND device = ?",
                    (client.run, client.device),
                ).fetchone()
                if last is None or last[0] < client.round:
                    self._insert(db, "client_models", client, "INSERT OR REPLACE")

    def client_model(self, run: str, device: str) -> ClientModelRow | None:
        """A device's last model, by reference."""
        sql = "SELECT * FROM client_models WHERE run = ? AND device = ?"
        return next(iter(self._rows(ClientModelRow, sql, run, device)), None)

    def update_blob(self, sha256: bytes) -> bytes:
        """The bytes of an accepted update, checked against their hash."""
        with self._errors():
            sql = "SELECT data FROM small_updates WHERE sha256 = ?"
            row = self._db.execute(sql, (sha256,)).fetchone()
        if row is None:
            return self.blobs.read(sha256)
        if hashlib.sha256(row[0]).digest() != sha256:
            raise StorageError(f"{self._path}: update {sha256.hex()} does not have its sha256")
        return bytes(row[0])

    def lost(self, sha256: bytes) -> str:
        """Why an update or another blob is lost for good; empty if it can be read, or may be later."""
        try:
            self.update_blob(sha256)
        except StorageError as exc:
            cause = exc.__cause__  # None: the bytes do not have their hash
            if cause is None or (isinstance(cause, OSError) and cause.errno in _GONE):
                return str(exc)
        return ""

    def drop_small_updates(self) -> None:
        """Delete the small updates that nothing refers to."""
        with self._transaction() as db:
            db.execute(f"DELETE FROM small_updates WHERE sha256 NOT IN ({NAMED_UPDATES})")

    def named_blobs(self) -> set[bytes]:
        """Every blob that a row refers to outside the runs' states; steps count in open rounds only."""
        with self._errors():
            rows = self._db.execute(named_blobs_sql(LATE_ROUNDS))
            named = {bytes(row[0]) for row in rows if row[0]}
            coded = self._db.execute("SELECT steps FROM rounds WHERE open = 1").fetchall()
        return named.union(*({step.blob for step in steps_of(bytes(row[0]))} for row in coded))

    def _use_wal(self) -> None:
        """Switch to WAL. SQLite itself does not wait when two processes create the file at once."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as exc:
                if (
                    exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY
                    or time.monotonic() > deadline
                ):
                    raise
                time.sleep(0.01)

    def _open_schema(self) -> None:
        """Create the tables, unless another process has done so."""
        with self._transaction() as db:
            schema = db.execute("PRAGMA user_version").fetchone()[0]
            if schema == SCHEMA:
                return
            if schema != 0:
                raise StorageError(f"{self._path}: schema {schema}, this version uses {SCHEMA}")
            for statement in TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _insert(
        self, db: sqlite3.Connection, table: str, row: msgspec.Struct, verb: str = "INSERT"
    ) -> None:
        values = msgspec.structs.astuple(row)
        db.execute(f"{verb} INTO {table} VALUES ({','.join('?' * len(values))})", values)

    def _rows(self, kind: type[R], sql: str, *values: str | int) -> list[R]:
        with self._errors():
            rows = self._db.execute(sql, values).fetchall()
        names = kind.__struct_fields__
        try:
            return [
                msgspec.convert(dict(zip(names, row, strict=True)), kind, strict=False)
                for row in rows
            ]
        except msgspec.ValidationError as exc:
            raise StorageError(f"{self._path}: damaged {kind.__name__}: {exc}") from exc

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self.blobs.settle()  # the rows may name blobs
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as exc:  # the last: damaged text
            raise StorageError(f"{self._path}: {exc}") from exc
