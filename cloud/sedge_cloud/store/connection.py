"""The SQLite database of a coordinator's state folder: opened, checked, and written in transactions.

SQLite runs in WAL mode with synchronous=FULL: a transaction that returned survives power loss. Several
processes may have it open. This file owns sqlite3; the queries are in database.py.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from sedge_cloud.store.schema import MIGRATIONS, SCHEMA, TABLES
from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.disk import FILE_MODE, opened
from sedge_protocol.host.posix import lock

DATABASE_NAME = "sedge.sqlite"
# How long one process waits for another's transaction, in seconds.
BUSY_S = 10.0
# Everything that a database has, with its definition: a trigger, or a table's default, runs when we write.
_OBJECTS = "SELECT type, name, sql FROM sqlite_master"
_UPGRADE = "upgrade Sedge"
_BEGIN_ANEW = (
    "no release had it: `run export` models with the version that wrote it, and begin anew"
)

R = TypeVar("R", bound=msgspec.Struct)


class _Undone(Exception):
    """The end of a transaction that was to be tried only."""


class Database:
    """A state folder's database and blobs. Every method raises ``StorageError`` when it fails.

    Without ``durable`` nothing is flushed: writes survive the end of the process, but a power cut may
    damage the database. That is for emulation and simulation only.

    It belongs to the thread that opened it. With ``any_thread`` any may call it, one at a time.
    """

    def __init__(self, folder: Path, durable: bool = True, any_thread: bool = False) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            raise StorageError(f"state folder {folder}: {exc}") from exc
        self.folder = folder
        self.blobs = BlobFolder(folder, durable=durable)
        self._path = folder / DATABASE_NAME
        with self._errors():
            self._make_private()
            self._db = sqlite3.connect(
                self._path,
                timeout=BUSY_S,
                isolation_level=None,
                check_same_thread=not any_thread,
            )
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
        """Read the whole database. Raises ``StorageError`` when it is damaged, or not as we made it."""
        with self._errors():
            verdict = str(self._db.execute("PRAGMA quick_check").fetchone()[0])
            found = self._db.execute(_OBJECTS).fetchall()
        if verdict != "ok":
            raise StorageError(f"{self._path}: {verdict}")
        with closing(sqlite3.connect(":memory:")) as ours:
            ours.executescript(TABLES)
            foreign = set(found) - set(ours.execute(_OBJECTS))
        for kind, name, _ in sorted(foreign, key=str):
            raise StorageError(f"{self._path}: found {kind} {name!r}, which is not Sedge's")

    def copy_to(self, path: Path) -> None:
        """Write the database as it is at one moment, while others may write, to a new file."""
        with self._errors(), opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL):
            copy = sqlite3.connect(path)
            try:
                self._db.backup(copy)
            finally:
                copy.close()

    @contextmanager
    def blobs_held(self) -> Generator[None]:
        """No process collects blobs meanwhile."""
        with self._errors(), self._collecting() as descriptor:
            lock(descriptor, shared=True)
            yield

    @contextmanager
    def may_collect(self) -> Generator[bool]:
        """Whether blobs may be collected now; while it is so, nobody can begin to hold them."""
        with self._errors(), self._collecting() as descriptor:
            try:
                lock(descriptor, wait=False)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _collecting(self) -> AbstractContextManager[int]:
        return opened(self.folder / "collecting", os.O_RDWR | os.O_CREAT)

    def used_bytes(self) -> int:
        """The size of the database without the pages that are free."""
        pages = "SELECT (p.page_count - f.freelist_count) * s.page_size FROM pragma_page_count p"
        with self._errors():
            row = self._db.execute(
                f"{pages}, pragma_freelist_count f, pragma_page_size s"
            ).fetchone()
        return int(row[0])

    def shrink(self) -> None:
        """Give free pages back to the disk; other processes wait meanwhile."""
        with self._errors():
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def version(self) -> int:
        """A number that changes whenever another process has committed something."""
        with self._errors():
            row = self._db.execute("PRAGMA data_version").fetchone()
        return int(row[0])

    def _make_private(self) -> None:
        """Make the file before SQLite opens it: the -wal and -shm files get the database's own mode.

        One that exists is not opened here: closing it would drop the locks of this process's other stores,
        and the next process to leave would take their log with it.
        """
        with suppress(FileExistsError), opened(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL):
            return
        if self._path.is_symlink():
            raise OSError(errno.ELOOP, "a link in the place of the database")
        os.chmod(self._path, FILE_MODE)

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
        """Create the tables, or bring them to this version's schema, unless another process has done so."""
        with self._transaction() as db:
            found: int = db.execute("PRAGMA user_version").fetchone()[0]
            if found == SCHEMA:
                return
            steps = [TABLES] if found == 0 else [MIGRATIONS.get(n) for n in range(found, SCHEMA)]
            if found > SCHEMA or None in steps:
                todo = _UPGRADE if found > SCHEMA else _BEGIN_ANEW
                raise StorageError(
                    f"{self._path}: schema {found}, this version uses {SCHEMA}; {todo}"
                )
            for statement in ";".join(filter(None, steps)).split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _require_run(self, db: sqlite3.Connection, run: str, status: str = "") -> None:
        """Raise ``StorageError`` for a run that another process has deleted or given another status."""
        row = db.execute("SELECT status FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None or status not in ("", row[0]):
            raise StorageError(f"run {run}: it is {'deleted' if row is None else row[0]}")

    def _insert(
        self, db: sqlite3.Connection, table: str, row: msgspec.Struct, verb: str = "INSERT"
    ) -> None:
        values = msgspec.structs.astuple(row)
        db.execute(f"{verb} INTO {table} VALUES ({','.join('?' * len(values))})", values)

    def _stamp(self, db: sqlite3.Connection) -> int:
        """The number of this transaction, which no other has: its row is locked until the commit."""
        db.execute("UPDATE meta SET value = value + 1 WHERE key = 'change'")
        return int(db.execute("SELECT value FROM meta WHERE key = 'change'").fetchone()[0])

    def _put(self, db: sqlite3.Connection, table: str, row: msgspec.Struct) -> None:
        """Insert a row, or replace all but the key of the one that is there; the key comes first."""
        key, *names = row.__struct_fields__
        sets = ", ".join(f"{name} = excluded.{name}" for name in names)
        marks = ", ".join("?" * (1 + len(names)))
        db.execute(
            f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {sets}",
            msgspec.structs.astuple(row),
        )

    def _rows(self, kind: type[R], sql: str, *values: str | float) -> list[R]:
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
    def transaction(self, dry_run: bool = False) -> Generator[None]:
        """Make everything inside one transaction; with ``dry_run`` nothing of it remains."""
        try:
            with self._transaction():
                yield
                if dry_run:
                    raise _Undone
        except _Undone:
            pass

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        if self._db.in_transaction:  # of ``transaction``
            yield self._db
            return
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
