"""What the coordinator knows, on disk: one SQLite database and a folder of blobs.

SQLite in WAL mode with synchronous=FULL: a transaction that returned survives power loss. Blobs are
written, and flushed, before the transaction that names them, so a row never names a missing blob;
what a crash leaves unnamed is collected. The command line writes here too, beside a running service,
which notices by ``data_version``. This file owns sqlite3.
"""

import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from sedge_protocol.blobs import BlobFolder
from sedge_protocol.errors import ConfigError, StorageError

# How long one process waits for another's transaction, in seconds.
BUSY_S = 10.0
# A device may be this many rounds late and still have its update understood.
LATE_ROUNDS = 3
# Tables since schema 1.
SCHEMA = 1
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE devices (
    device TEXT PRIMARY KEY, secret BLOB NOT NULL, revoked INTEGER NOT NULL DEFAULT 0,
    boot INTEGER NOT NULL DEFAULT 0, hello BLOB);
CREATE TABLE runs (
    run TEXT PRIMARY KEY, status TEXT NOT NULL, config BLOB NOT NULL, bundle BLOB NOT NULL,
    state BLOB NOT NULL, created REAL NOT NULL);
CREATE TABLE rounds (
    run TEXT NOT NULL, round INTEGER NOT NULL, task TEXT NOT NULL, open INTEGER NOT NULL,
    model BLOB NOT NULL, model_hash BLOB NOT NULL, summary BLOB, PRIMARY KEY (run, round));
CREATE TABLE orders (
    run TEXT NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, patch BLOB NOT NULL,
    keep BLOB NOT NULL, upload INTEGER NOT NULL, arrays BLOB NOT NULL,
    declined TEXT NOT NULL DEFAULT '', PRIMARY KEY (run, round, device));
CREATE TABLE updates (
    run TEXT NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, blob BLOB NOT NULL,
    report BLOB NOT NULL, size INTEGER NOT NULL, late INTEGER NOT NULL,
    rejected TEXT NOT NULL DEFAULT '', detail TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (run, round, device));
CREATE TABLE memory (
    run TEXT NOT NULL, device TEXT NOT NULL, round INTEGER NOT NULL, model BLOB NOT NULL,
    patch BLOB NOT NULL, blob BLOB NOT NULL, arrays BLOB NOT NULL, PRIMARY KEY (run, device));
"""


R = TypeVar("R", bound=msgspec.Struct)


class DeviceRow(msgspec.Struct, frozen=True):
    """One enrolled device; ``hello`` is the last one's MessagePack, or None."""

    device: str
    secret: bytes
    revoked: bool
    boot: int
    hello: bytes | None


class RunRow(msgspec.Struct, frozen=True):
    """One run; ``config`` and ``state`` are MessagePack (config.RunConfig, ledger.RunState)."""

    run: str
    status: str
    config: bytes
    bundle: bytes
    state: bytes
    created: float


class RoundRow(msgspec.Struct, frozen=True):
    """One round; ``model`` is the blob of the coded global, ``summary`` MessagePack once closed."""

    run: str
    round: int
    task: str
    open: bool
    model: bytes
    model_hash: bytes
    summary: bytes | None


class OrderRow(msgspec.Struct, frozen=True):
    """What one device was given; ``patch`` is coded, ``keep`` MessagePack, ``arrays`` a blob or empty."""

    run: str
    round: int
    device: str
    patch: bytes
    keep: bytes
    upload: bool
    arrays: bytes
    declined: str = ""


class UpdateRow(msgspec.Struct, frozen=True):
    """One receipt, good (``rejected`` empty) or not; repeated offers get the same answer."""

    run: str
    round: int
    device: str
    blob: bytes
    report: bytes
    size: int
    late: bool
    rejected: str = ""
    detail: str = ""


class MemoryRow(msgspec.Struct, frozen=True):
    """A device's last model in references: global blob + patch + update blob give the vector."""

    run: str
    device: str
    round: int
    model: bytes
    patch: bytes
    blob: bytes
    arrays: bytes


class Store:
    """The coordinator's memory. Every method is one transaction; ``StorageError`` when it failed."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            raise StorageError(f"state folder {folder}: {exc}") from exc
        self.blobs = BlobFolder(folder)
        self._path = folder / "sedge.sqlite"
        with self._errors():
            # Before SQLite opens it: the -wal and -shm files get the database's own mode.
            self._path.touch(mode=0o600)
            self._path.chmod(0o600)
            self._db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        try:
            with self._errors():
                self._use_wal()
                self._db.execute("PRAGMA synchronous=FULL")
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
            found = str(self._db.execute("PRAGMA quick_check").fetchone()[0])
        if found != "ok":
            raise StorageError(f"{self._path}: {found}")

    def version(self) -> int:
        """Changes whenever another process has committed something."""
        with self._errors():
            row = self._db.execute("PRAGMA data_version").fetchone()
        return int(row[0])

    def next_boot(self, at_least: int) -> int:
        """Our own start count: larger than ever before, and at least the given number."""
        with self._transaction() as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'boot'").fetchone()
            boot = max(int(row[0]) + 1, at_least)
            db.execute("UPDATE meta SET value = ? WHERE key = 'boot'", (boot,))
        return boot

    def devices(self) -> list[DeviceRow]:
        """Every device ever enrolled, by id."""
        return self._rows(DeviceRow, "SELECT * FROM devices ORDER BY device")

    def add_device(self, device: str, secret: bytes) -> None:
        """Enrol a device. Raises ``ConfigError`` when the id is taken."""
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM devices WHERE device = ?", (device,)).fetchone():
                raise ConfigError("device", device, "an id that is not enrolled yet")
            db.execute("INSERT INTO devices (device, secret) VALUES (?, ?)", (device, secret))

    def revoke_device(self, device: str) -> None:
        """Never listen to a device again. Raises ``ConfigError`` when there is none such."""
        with self._transaction() as db:
            found = db.execute("UPDATE devices SET revoked = 1 WHERE device = ?", (device,))
            if not found.rowcount:
                raise ConfigError("device", device, "an enrolled device")

    def heard(self, device: str, boot: int, hello: bytes) -> None:
        """Keep a device's newest boot and hello."""
        with self._transaction() as db:
            db.execute(
                "UPDATE devices SET boot = ?, hello = ? WHERE device = ?", (boot, hello, device)
            )

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
        """Change a running run's status. Raises ``ConfigError`` when there is none such."""
        sql = "UPDATE runs SET status = ? WHERE run = ? AND status = 'running'"
        with self._transaction() as db:
            if not db.execute(sql, (status, run)).rowcount:
                raise ConfigError("run", run, "the name of a running run")

    def rounds(self, run: str) -> list[RoundRow]:
        """A run's rounds in order."""
        return self._rows(RoundRow, "SELECT * FROM rounds WHERE run = ? ORDER BY round", run)

    def round(self, run: str, number: int) -> RoundRow | None:
        """One round."""
        sql = "SELECT * FROM rounds WHERE run = ? AND round = ?"
        return next(iter(self._rows(RoundRow, sql, run, number)), None)

    def open_round(self, row: RoundRow, orders: list[OrderRow]) -> None:
        """Begin a round: the row and every order, together."""
        with self._transaction() as db:
            self._insert(db, "rounds", row)
            for order in orders:
                self._insert(db, "orders", order)

    def close_round(self, run: str, number: int, summary: bytes, state: bytes, status: str) -> None:
        """End a round: its summary, and the run's next state and status, together."""
        with self._transaction() as db:
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
        """A device cannot do its order."""
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

    def update(self, run: str, number: int, device: str) -> UpdateRow | None:
        """The receipt, good or not, of one device in one round."""
        sql = "SELECT * FROM updates WHERE run = ? AND round = ? AND device = ?"
        return next(iter(self._rows(UpdateRow, sql, run, number, device)), None)

    def receive(self, row: UpdateRow, memory: MemoryRow | None) -> None:
        """Write a receipt and, with it, what the device's model has become (if newer)."""
        with self._transaction() as db:
            self._insert(db, "updates", row)
            if memory is not None:
                known = db.execute(
                    "SELECT round FROM memory WHERE run = ? AND device = ?",
                    (memory.run, memory.device),
                ).fetchone()
                if known is None or known[0] < memory.round:
                    self._insert(db, "memory", memory, "INSERT OR REPLACE")

    def memory(self, run: str, device: str) -> MemoryRow | None:
        """A device's last model, in references."""
        sql = "SELECT * FROM memory WHERE run = ? AND device = ?"
        return next(iter(self._rows(MemoryRow, sql, run, device)), None)

    def named_blobs(self) -> set[bytes]:
        """Every blob that a row outside the runs' state still needs.

        A round up to ``LATE_ROUNDS`` before the one that is open, or next, needs its model and its
        orders' arrays: both go into a device's memory when its late update comes.
        """
        live = (
            f"(r.open = 1 OR r.round + {LATE_ROUNDS} >="
            " (SELECT MAX(round + 1 - open) FROM rounds WHERE run = r.run))"
        )
        sql = (
            "SELECT bundle FROM runs UNION SELECT model FROM memory UNION SELECT blob FROM memory"
            f" UNION SELECT arrays FROM memory UNION SELECT model FROM rounds r WHERE {live}"
            " UNION SELECT u.blob FROM updates u JOIN rounds r ON u.run = r.run AND u.round = r.round"
            " WHERE r.open = 1 UNION SELECT o.arrays FROM orders o JOIN rounds r"
            f" ON o.run = r.run AND o.round = r.round WHERE {live}"
        )
        with self._errors():
            return {bytes(row[0]) for row in self._db.execute(sql) if row[0]}

    def _use_wal(self) -> None:
        """Switch to WAL; SQLite does not wait by itself when two processes make the file at once."""
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
        """Make the tables, once, whoever of several processes comes first."""
        with self._transaction() as db:
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found == 0:
                for statement in TABLES.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO meta VALUES ('boot', 0)")
                db.execute(f"PRAGMA user_version = {SCHEMA}")
            elif found != SCHEMA:
                raise StorageError(f"{self._path}: schema {found}, this version uses {SCHEMA}")

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
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as exc:  # damage in a name or message
            raise StorageError(f"{self._path}: {exc}") from exc
