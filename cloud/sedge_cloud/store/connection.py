"""A store's database and blobs: opens them, checks them, and writes in transactions.

A ``Dialect`` (sqlite.py, postgres.py) covers the differences between databases; the queries are in
``Store`` (database.py) and its base classes.
"""

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sedge_cloud.store import earlier
from sedge_cloud.store.contract import Blobs, Dialect, Parts, Public
from sedge_cloud.store.schema import LEADER, MIGRATIONS, SCHEMA, TABLE_NAMES, TABLES
from sedge_protocol.errors import StorageError

_UPGRADE = "upgrade Sedge"
_BEGIN_ANEW = (
    "no release used it: `run export` models with the version that wrote it, then start anew"
)
# The name of a lock. An exclusive holder may collect blobs; shared holders prevent that.
COLLECTING = "collecting"
# The name of the lock held by a coordinator, or by a command that must not run at the same time.
SERVING = "serving"

# Queries that lock this process's row and the leader's lease (see leases.py). A lease changes its owner by
# an UPDATE, which FOR KEY SHARE does not block.
_SERVES = "SELECT 1 FROM processes WHERE token = ? FOR KEY SHARE"
_LEADS = (
    "SELECT 1 FROM processes p JOIN leases l ON l.token = p.token"
    f" WHERE p.token = ? AND l.name = '{LEADER}' FOR KEY SHARE OF p FOR SHARE OF l"
)

# The limit on values per statement: SQLite allows 32,766, PostgreSQL 65,535.
MOST_VALUES = 30_000

R = TypeVar("R", bound=msgspec.Struct)
V = TypeVar("V")


def portions(values: Sequence[V], width: int = 1) -> Iterator[Sequence[V]]:
    """Split values into portions, one per statement; each value takes ``width`` placeholders."""
    step = MOST_VALUES // width
    return (values[i : i + step] for i in range(0, len(values), step))


def marks(values: Sequence[object]) -> str:
    """Return comma-separated placeholders, one for each value."""
    return ",".join("?" * len(values))


class LeaseLost(StorageError):
    """This process was taken for dead and replaced. It must join again before it can write."""


class _Undone(Exception):
    """Rolls back a transaction that was only a dry run."""


class Database:
    """A database and its blobs. Every method raises ``StorageError`` when it fails.

    ``folder`` is the state folder on this machine's disk, which holds parts of uploads and, with SQLite,
    everything.
    """

    def __init__(
        self, db: Dialect, blobs: Blobs, parts: Parts, folder: Path, public: Public | None = None
    ) -> None:
        self.folder, self.blobs, self.parts, self.public = folder, blobs, parts, public
        self._db = db
        self._token: int | None = None  # this process's token (leases.py), while it serves
        try:
            self._open_schema()
        except BaseException:
            db.close()
            raise

    @property
    def place(self) -> str:
        """Return the database's name in error messages."""
        return self._db.place

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def check(self) -> None:
        """Read the whole database.

        Raises ``StorageError`` if it is damaged, or has tables that we did not create.
        """
        self._db.check(TABLES)

    @contextmanager
    def serving(self, *, shared: bool = False) -> Generator[None]:
        """Lock the store for serving during a ``with`` block.

        No other process may serve the store in the meantime; if ``shared``, processes that also share it
        may. Raises ``StorageError`` if another process is serving it already.
        """
        with self._db.lock(SERVING, shared=shared) as is_held:
            if not is_held:
                alone = "a coordinator that serves alone, or a command such as restore, is using this store"
                running = "a coordinator is running on this store"
                raise StorageError(f"{self.place}: {alone if shared else running}")
            yield

    @contextmanager
    def blobs_held(self) -> Generator[None]:
        """Prevent every process from collecting blobs during a ``with`` block."""
        with self._db.lock(COLLECTING, shared=True) as is_held:
            if not is_held:
                raise StorageError(f"{self.place}: blobs are being collected; try again")
            yield

    @contextmanager
    def may_collect(self) -> Generator[bool]:
        """Yield True if blobs may be collected; meanwhile no process can enter ``blobs_held``."""
        with self._db.lock(COLLECTING) as is_held:
            yield is_held

    def used_bytes(self) -> int:
        """Return the size of the database in bytes. With SQLite, free space is not counted."""
        with self._db.errors():
            return self._db.used_bytes()

    def shrink(self) -> None:
        """Return free space to the disk; other processes may have to wait."""
        with self._db.errors():
            self._db.shrink()

    def version(self) -> int:
        """Return a number that changes whenever another process has committed a change."""
        with self._db.errors():
            return self._db.version()

    def copy_rows_to(self, other: "Database") -> None:
        """Replace another database's rows with a consistent snapshot of this one's, in one transaction."""
        with self._db.errors():
            self._db.begin_reading()
            try:
                with other._transaction(alone=True) as db:
                    for table in TABLE_NAMES:
                        db.execute(f"DELETE FROM {table}")
                        width, rows = self._db.table(table)
                        db.insert(table, rows, width)
            finally:
                self._db.rollback()

    def _open_schema(self) -> None:
        """Create the tables or migrate them to this version's schema, if necessary."""
        with self._transaction(alone=True) as db:
            found = db.schema()
            if found == SCHEMA:
                return
            steps = [TABLES] if found == 0 else [MIGRATIONS.get(n) for n in range(found, SCHEMA)]
            if found > SCHEMA or None in steps:
                todo = _UPGRADE if found > SCHEMA else _BEGIN_ANEW
                raise StorageError(
                    f"{self.place}: schema {found}, but this version uses {SCHEMA}; {todo}"
                )
            # Migrate only while no coordinator runs.
            with self.serving() if found else nullcontext():
                db.define(";".join(filter(None, steps)), SCHEMA)
            if found == earlier.SCHEMA:
                earlier.adopt(db.execute, self.folder)
            if 0 < found < earlier.ABILITIES:
                sql = "SELECT device, hello FROM devices WHERE hello IS NOT NULL"
                hellos = db.execute(sql).fetchall()
                self._insert(db, "abilities", *earlier.adopt_hellos(hellos))
                earlier.adopt_options(db.execute)
        for name in earlier.FILES:
            with suppress(OSError):
                (self.folder / name).unlink()

    def _require_run(self, db: Dialect, run: str, status: str = "", *, alone: bool = False) -> None:
        """Raise ``StorageError`` if another process has deleted a run or changed its status.

        No process can do either until the transaction ends. With ``alone``, which opening and closing
        rounds use, all other transactions that call this method wait as well.
        """
        sql = f"SELECT status FROM runs WHERE run = ? FOR {'UPDATE' if alone else 'SHARE'}"
        row = db.execute(sql, (run,)).fetchone()
        if row is None or status not in ("", row[0]):
            raise StorageError(f"run {run}: it is {'deleted' if row is None else row[0]}")

    def _require_token(self, token: int, leads: bool = False) -> None:
        """Raise ``LeaseLost`` if another process has replaced this one: the fence in leases.py.

        With ``leads``, raise ``StorageError`` if this process is not the leader.
        """
        if self._db.execute(_LEADS if leads else _SERVES, (token,)).fetchone() is not None:
            return
        if not leads:
            raise self.lease_lost()
        self._require_token(token)
        raise StorageError(f"{self.place}: another process leads")

    def lease_lost(self) -> LeaseLost:
        """Return the error for a process that was replaced by another one."""
        return LeaseLost(f"{self.place}: this process was silent, and another has replaced it")

    def _insert(self, db: Dialect, table: str, *rows: msgspec.Struct) -> None:
        if rows:
            values = [msgspec.structs.astuple(row) for row in rows]
            db.insert(table, values, len(values[0]))

    def _stamp(self, db: Dialect) -> int:
        """Return this transaction's unique number; the counter's row is locked until the commit."""
        sql = "UPDATE meta SET value = value + 1 WHERE key = 'change' RETURNING value"
        return int(db.execute(sql).fetchone()[0])

    def _now(self, db: Dialect) -> float:
        """Return the time on the database's clock, in seconds since 1970."""
        return float(db.execute(f"SELECT {db.clock}").fetchone()[0])

    def _put(
        self, db: Dialect, table: str, *rows: msgspec.Struct, keys: int = 1, sets: str = ""
    ) -> None:
        """Insert rows. If the key (the first ``keys`` fields) exists, replace all other fields.

        ``sets`` overrides which fields are replaced.
        """
        fields = rows[0].__struct_fields__ if rows else ()
        sets = sets or ", ".join(f"{name} = excluded.{name}" for name in fields[keys:])
        for some in portions(rows, max(1, len(fields))):
            values = [msgspec.structs.astuple(row) for row in some]
            all_marks = ", ".join([f"({marks(fields)})"] * len(values))
            sql = f"INSERT INTO {table} VALUES {all_marks} ON CONFLICT ({', '.join(fields[:keys])})"
            db.execute(f"{sql} DO UPDATE SET {sets}", [value for each in values for value in each])

    def _rows(self, kind: type[R], sql: str, *values: str | float) -> list[R]:
        with self._db.errors():
            rows = self._db.execute(sql, values).fetchall()
        names = kind.__struct_fields__
        try:
            return [
                msgspec.convert(dict(zip(names, row, strict=True)), kind, strict=False)
                for row in rows
            ]
        except msgspec.ValidationError as exc:
            raise StorageError(f"{self.place}: damaged {kind.__name__}: {exc}") from exc

    def _named(self, kind: type[R], sql: str, names: Collection[str]) -> list[R]:
        """Return the rows with any of these names, in portions; ``sql`` has {} in place of placeholders."""
        some = portions(sorted(names))
        return [row for each in some for row in self._rows(kind, sql.format(marks(each)), *each)]

    def _among(self, sql: str, run: str, values: Sequence[str | int], *more: int) -> list[Any]:
        """Return a run's rows that have any of these values, read in portions."""
        with self._db.errors():
            return [
                row
                for some in portions(values)
                for row in self._db.execute(sql.format(marks(some)), (run, *more, *some))
            ]

    @contextmanager
    def reading(self) -> Generator[None]:
        """Let all reads in a ``with`` block see one consistent snapshot."""
        with self._db.errors():
            self._db.begin_reading()
            try:
                yield
            finally:
                self._db.rollback()

    @contextmanager
    def transaction(self, dry_run: bool = False, flush: bool = True) -> Generator[None]:
        """Make everything in a ``with`` block one transaction; if ``dry_run``, it is rolled back.

        Without ``flush`` a power cut may undo it, but only as a whole.
        """
        try:
            with self._transaction(flush=flush):
                yield
                if dry_run:
                    raise _Undone
        except _Undone:
            pass

    @contextmanager
    def _transaction(
        self,
        *,
        alone: bool = False,
        flush: bool = True,
        quiet: bool = False,
        fenced: bool = True,
        leads: bool = False,
    ) -> Generator[Dialect]:
        """Begin a transaction that writes. A ``quiet`` one does not notify other processes.

        If ``fenced``, the transaction fails if this process has been replaced; if ``leads``, it also fails
        if this process is not the leader (leases.py).
        """
        if self._db.in_transaction:  # inside ``transaction``
            yield self._db
            return
        with self._db.errors():
            self.blobs.settle()  # before any lock, as uploads may take longer than IDLE_S
            self._db.begin(alone=alone, flush=flush)
            try:
                if fenced and self._token is not None:
                    self._require_token(self._token, leads)
                yield self._db
                # The transaction's rows may name blobs that were written after it had begun.
                self.blobs.settle()
                if quiet:
                    self._db.commit(quiet=True)
                else:
                    self._db.commit()
            except BaseException:
                self._db.rollback()
                raise
