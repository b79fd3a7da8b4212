"""Rows in SQLite: one file in the state folder, which several processes may have open.

WAL mode with synchronous=FULL: a transaction that returned survives power loss. Only this file uses
sqlite3.
"""

import errno
import os
import re
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from sedge_cloud.store.contract import Values
from sedge_protocol.errors import StorageError
from sedge_protocol.host.disk import FILE_MODE, opened
from sedge_protocol.host.posix import lock

DATABASE_NAME = "sedge.sqlite"
# How many seconds one process waits for another's transaction.
BUSY_S = 10.0
# How many rows one statement inserts.
ROWS = 256
# Selects everything defined in a database, as a trigger or a table's default would run when we write.
_OBJECTS = "SELECT type, name, sql FROM sqlite_master"
_LOCKS = re.compile(r"( FOR (UPDATE|(KEY )?SHARE)( OF \w+)?)+$")


class Sqlite:
    """A state folder's database (contract.Dialect).

    Without ``durable`` nothing is flushed: writes survive the end of the process, but a power cut may
    damage the database. So this is for emulation and simulation only.

    By default, only the thread that opened it may use it. With ``any_thread`` any thread may, one at a
    time.
    """

    # julianday() has millisecond precision; unixepoch() has it only from SQLite 3.42 on.
    clock = "(julianday('now') - 2440587.5) * 86400.0"

    def __init__(self, folder: Path, durable: bool = True, any_thread: bool = False) -> None:
        self._folder = folder
        self._durable, self._flushes = durable, True
        self._path = folder / DATABASE_NAME
        self.place = str(self._path)
        with self.errors():
            self._make_private()
            self._db = sqlite3.connect(
                self._path,
                timeout=BUSY_S,
                isolation_level=None,
                check_same_thread=not any_thread,
            )
        try:
            with self.errors():
                self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
                self._use_wal()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @contextmanager
    def errors(self) -> Generator[None]:
        """Turn SQLite's and the disk's errors into ``StorageError``."""
        try:
            yield
        # UnicodeDecodeError means damaged text.
        except (sqlite3.Error, OSError, UnicodeDecodeError) as exc:
            raise StorageError(f"{self.place}: {_line(exc)}") from exc

    def execute(self, sql: str, values: Values = ()) -> sqlite3.Cursor:
        """Execute one statement."""
        return self._db.execute(_translated(sql), values)

    def table(self, name: str) -> tuple[int, Iterator[Sequence[Any]]]:
        """Return a table's number of columns, and its rows."""
        rows = self._db.execute(f"SELECT * FROM {name}")
        return len(rows.description), rows

    def insert(self, table: str, rows: Iterable[Sequence[Any]], width: int) -> None:
        """Insert whole rows."""
        left, marks = iter(rows), f"({','.join('?' * width)})"
        while portion := list(islice(left, ROWS)):
            values = [value for row in portion for value in row]
            self._db.execute(
                f"INSERT INTO {table} VALUES {','.join([marks] * len(portion))}", values
            )

    def begin(self, *, alone: bool = False, flush: bool = True) -> None:
        """Begin a transaction that writes. Only one process at a time can do so."""
        if self._durable and flush != self._flushes:
            self._db.execute(f"PRAGMA synchronous={'FULL' if flush else 'NORMAL'}")
            self._flushes = flush
        self._db.execute("BEGIN IMMEDIATE")

    def begin_reading(self) -> None:
        """Begin a transaction that sees one consistent snapshot, from its first statement on."""
        self._db.execute("BEGIN")

    def commit(self, *, quiet: bool = False) -> None:
        """Commit a transaction."""
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        """Roll back a transaction, unless an error has already done so."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        """Return True within a transaction."""
        return self._db.in_transaction

    def limit_idle(self, seconds: float) -> None:
        """Do nothing: no other process can write in the meantime, or replace this one."""

    def schema(self) -> int:
        """Return the version number of the tables' schema."""
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def define(self, statements: str, schema: int) -> None:
        """Create or change tables one statement at a time: ``executescript`` would end the transaction."""
        for statement in statements.split(";"):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {schema}")

    def check(self, tables: str) -> None:
        """Read the whole database and check its definitions."""
        with self.errors():
            verdict = str(self._db.execute("PRAGMA quick_check").fetchone()[0])
            defined = self._db.execute(_OBJECTS).fetchall()
        if verdict != "ok":
            raise StorageError(f"{self.place}: {_line(verdict)}")
        with closing(sqlite3.connect(":memory:")) as ours:
            ours.executescript(tables)
            foreign = set(defined) - set(ours.execute(_OBJECTS))
        for kind, name, _ in sorted(foreign, key=str):
            raise StorageError(f"{self.place}: found {kind} {name!r}, which is not Sedge's")

    def version(self) -> int:
        """Return SQLite's own count of other connections' commits."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def lock(self, name: str, *, shared: bool = False) -> Generator[bool]:
        """Hold a lock on the file with this name in the state folder."""
        with self.errors(), opened(self._folder / name, os.O_RDWR | os.O_CREAT) as descriptor:
            try:
                lock(descriptor, shared=shared, wait=shared)
            except BlockingIOError:
                yield False
            else:
                yield True

    def used_bytes(self) -> int:
        """Return the size of the file in bytes, without its free pages."""
        pages = "SELECT (p.page_count - f.freelist_count) * s.page_size FROM pragma_page_count p"
        row = self._db.execute(f"{pages}, pragma_freelist_count f, pragma_page_size s").fetchone()
        return int(row[0])

    def shrink(self) -> None:
        """Return free pages to the disk while other processes wait."""
        self._db.execute("VACUUM")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _make_private(self) -> None:
        """Create the file before SQLite opens it, so that the -wal and -shm files get its mode.

        An existing file is not opened here. Closing it would drop the locks of this process's other stores,
        and the next process to close the database would then delete their log.
        """
        with suppress(FileExistsError), opened(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL):
            return
        if self._path.is_symlink():
            raise OSError(errno.ELOOP, "a link in place of the database")
        os.chmod(self._path, FILE_MODE)

    def _use_wal(self) -> None:
        """Switch to WAL. Retries, as SQLite does not wait if two processes create the file at once."""
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


# Enough entries: there are few statements, and long ones differ only in their number of values.
@lru_cache(256)
def _translated(sql: str) -> str:
    """Return the statement without row locks; a transaction that writes locks the whole database anyway."""
    return _LOCKS.sub("", sql)


def _line(said: object) -> str:
    """Format SQLite's report of damage, which may quote a table's definition, as one line."""
    return " ".join(str(said).split())
