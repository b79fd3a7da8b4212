"""Rows in PostgreSQL, which coordinators on several machines may share (the extra ``stores``).

Transactions are READ COMMITTED: rows that no other process may change in the meantime are locked with ``FOR
UPDATE`` or ``FOR SHARE``, unless a single statement suffices. The next statement outside a transaction
reopens a lost connection, so a coordinator survives its server's restart. Only this file uses psycopg.
"""

import re
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, LiteralString, cast

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import LockNotAvailable
from psycopg.postgres import types
from psycopg.types.string import StrDumper

from sedge_cloud.store.contract import Cursor, Values
from sedge_protocol.errors import ConfigError, StorageError

# How many seconds a statement waits for another transaction.
BUSY_S = 10.0
# How many seconds a server may be silent while a message to it is in flight, and how many seconds opening a
# connection may take. Both are short, as the coordinator can do nothing else in the meantime.
SILENT_S, CONNECT_S = 6, 4
# The server drops a silent connection after idle + count * interval seconds.
ENDS = {
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 11_000,
    "client_connection_check_interval": 2_000,
}
# After a failed attempt to connect, no further attempt is made for this many seconds.
RECONNECT_S = 2.0
# How many rows are held in memory at once when a whole table is read.
BATCH = 500
TYPES = {
    "BLOB": "BYTEA",
    "REAL": "DOUBLE PRECISION",
    "INTEGER": "BIGINT",
    # Text is sorted by bytes, as in SQLite, because cohorts and sums depend on the order of devices.
    "TEXT": 'TEXT COLLATE "C"',
}
_TYPES = re.compile(r"\b(BLOB|REAL|INTEGER|TEXT)\b")
_VALUES = re.compile(r"\?|%|(?<!:):([a-z_]+)")
# A table with one row: the tables' schema version, and a count of commits. It is not
# copied with the others.
_OWN = "CREATE TABLE sedge_store (schema BIGINT NOT NULL, commits BIGINT NOT NULL)"
_COMMITTED = "UPDATE sedge_store SET commits = commits + 1 RETURNING commits"
# Selects everything in the current schema that could run code or reject values when we write.
_OBJECTS = """
SELECT 'column', table_name || '.' || column_name,
       data_type || ' ' || is_nullable || ' ' || COALESCE(column_default, '')
FROM information_schema.columns WHERE table_schema = current_schema()
UNION ALL SELECT 'trigger', c.relname || '.' || t.tgname, ''
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace
UNION ALL SELECT 'rule', tablename || '.' || rulename, definition
FROM pg_rules WHERE schemaname = current_schema()
UNION ALL SELECT 'index', tablename || '.' || indexname,
       replace(indexdef, ' ' || current_schema() || '.', ' ')
FROM pg_indexes WHERE schemaname = current_schema()
UNION ALL SELECT 'constraint', c.relname || '.' || k.conname, pg_get_constraintdef(k.oid)
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
WHERE c.relnamespace = current_schema()::regnamespace
"""


class _Truth(Dumper):
    """Dumps booleans as 0 and 1, as SQLite stores them."""

    oid = types["int8"].oid

    def dump(self, obj: bool) -> Buffer:
        return b"1" if obj else b"0"


class _Text(StrDumper):
    """Dumps text with its NUL characters replaced.

    PostgreSQL's text type cannot hold NUL characters, but a device's text may contain them.
    """

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))


class Postgres:
    """A connection to a PostgreSQL database (contract.Dialect). Threads may share it.

    ``password`` is None if the server requires none. Raises ``ConfigError`` if the URL is invalid, and
    ``StorageError`` if no server answers.
    """

    # clock_timestamp(), because now() would be the time at which the transaction started.
    clock = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"

    def __init__(self, url: str, password: str | None = None) -> None:
        self.place = url
        try:
            parameters: dict[str, Any] = conninfo_to_dict(url)
        except psycopg.ProgrammingError as exc:
            expected = f"postgresql://user@host/database ({_line(exc)})"
            raise ConfigError("store.url", url, expected) from exc
        # Connect only to the URL's hosts and, if the URL names several, only to the primary, as a replica
        # accepts no writes.
        parameters.setdefault("target_session_attrs", "read-write")
        parameters |= {
            "connect_timeout": CONNECT_S,
            "keepalives_idle": 2,
            "keepalives_interval": 1,
            "keepalives_count": SILENT_S - 2,
            "tcp_user_timeout": 1000 * SILENT_S,
            "application_name": "sedge-cloud",
        }
        if password is not None:
            parameters["password"] = password
        self._conninfo = make_conninfo(**parameters)
        self._held: list[tuple[str, bool]] = []  # locks to be taken again on a new connection
        self._in_transaction, self._own_commits = False, 0
        self._idle_s: float | None = None
        self._failed: tuple[float, psycopg.Error] | None = None
        with self.errors():
            self._db = self._connect()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    @contextmanager
    def errors(self) -> Generator[None]:
        """Turn PostgreSQL's errors into ``StorageError``."""
        try:
            yield
        except (psycopg.Error, UnicodeDecodeError) as exc:
            raise StorageError(f"{self.place}: {_line(exc)}") from exc

    def execute(self, sql: str, values: Values = ()) -> Cursor:
        """Execute one statement. Outside of a transaction, a lost connection is reopened first."""
        if self._db.closed and not self._in_transaction:
            self._db = self._connect()
        return self._db.execute(_translated(sql), values)

    def table(self, name: str) -> tuple[int, Iterator[Sequence[Any]]]:
        """Return a table's number of columns, and its rows, which a server-side cursor reads."""
        cursor = self._db.cursor(name="rows")
        cursor.itersize = BATCH
        cursor.execute(_text(f"SELECT * FROM {name}"))
        return len(cursor.description or ()), _closing(cursor)

    def insert(self, table: str, rows: Iterable[Sequence[Any]], width: int) -> None:
        """Insert complete rows with COPY."""
        with self._db.cursor() as cursor, cursor.copy(_text(f"COPY {table} FROM STDIN")) as copy:
            for row in rows:
                copy.write_row(row)

    def begin(self, *, alone: bool = False, flush: bool = True) -> None:
        """Begin a transaction that writes."""
        self.execute("BEGIN")
        self._in_transaction = True
        try:
            if alone:
                self.execute(f"SELECT pg_advisory_xact_lock({_key('alone')})")
            if not flush:
                self.execute("SET LOCAL synchronous_commit = off")
        except BaseException:
            self.rollback()
            raise

    def begin_reading(self) -> None:
        """Begin a transaction that sees one consistent snapshot."""
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._in_transaction = True

    def commit(self, *, quiet: bool = False) -> None:
        """Commit. The commit is counted last, as this locks a row that every transaction must lock."""
        counted = None if quiet else self.execute(_COMMITTED).fetchone()
        self.execute("COMMIT")
        self._in_transaction = False
        self._own_commits += counted is not None

    def rollback(self) -> None:
        """Roll back a transaction. If the connection is lost, the server rolls back on its own."""
        self._in_transaction = False
        with suppress(psycopg.Error):
            if not self._db.closed:
                self._db.execute("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        """Return True within a transaction."""
        return self._in_transaction

    def limit_idle(self, seconds: float) -> None:
        """Let the server close this connection, or a later one, if a transaction is idle for this long."""
        self._idle_s = seconds
        self.execute(_idle(seconds))

    def schema(self) -> int:
        """Return the version number of the tables' schema."""
        if self.execute("SELECT to_regclass('sedge_store')").fetchone()[0] is None:
            return 0
        return int(self.execute("SELECT schema FROM sedge_store").fetchone()[0])

    def define(self, statements: str, schema: int) -> None:
        """Create or change tables, translating the types to PostgreSQL's."""
        if self.schema() == 0:
            self.execute(_OWN)
            self.execute("INSERT INTO sedge_store VALUES (0, 0)")
        for statement in filter(str.strip, statements.split(";")):
            self._db.execute(_text(_TYPES.sub(lambda found: TYPES[found[0]], statement)))
        self.execute("UPDATE sedge_store SET schema = ?", (schema,))

    def check(self, tables: str) -> None:
        """Compare the tables with those that ``tables`` creates in a temporary schema."""
        with self.errors():
            defined = set(self.execute(_OBJECTS).fetchall())
            self.begin()
            try:
                self.execute("CREATE SCHEMA sedge_check")
                self.execute("SET LOCAL search_path TO sedge_check")
                self.define(tables, 0)
                ours = set(self.execute(_OBJECTS).fetchall())
            finally:
                self.rollback()
        for kind, name, _ in sorted(defined - ours):
            raise StorageError(f"{self.place}: found {kind} {name!r}, which is not Sedge's")
        for kind, name, _ in sorted(ours - defined):
            raise StorageError(f"{self.place}: {kind} {name!r} is missing")

    def version(self) -> int:
        """Return the number of commits by other connections."""
        row = self.execute("SELECT commits FROM sedge_store").fetchone()
        return int(row[0]) - self._own_commits

    @contextmanager
    def lock(self, name: str, *, shared: bool = False) -> Generator[bool]:
        """Hold an advisory lock on the server.

        If the connection is lost, the next one takes the lock again.
        """
        with self.errors():
            is_held = self._wait_to_share(name) if shared else self._try_lock(name, shared)
        if not is_held:
            yield False
            return
        self._held.append((name, shared))
        try:
            yield True
        finally:
            self._held.remove((name, shared))
            with suppress(psycopg.Error):  # the lock has been lost with the connection
                self._db.execute(_text(f"SELECT pg_advisory_unlock{_suffix(shared)}({_key(name)})"))

    def used_bytes(self) -> int:
        """Return the size of the tables in bytes, including free space in them."""
        sql = (
            "SELECT SUM(pg_total_relation_size(oid)) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
        )
        return int(self.execute(sql).fetchone()[0])

    def shrink(self) -> None:
        """Make free space reusable; the server returns what it can to the disk."""
        self.execute("VACUUM")

    def _connect(self) -> psycopg.Connection[Any]:
        """Open a connection.

        Raises ``psycopg.Error``. For a while after a failure it raises at once, without another attempt.
        """
        if self._failed is not None and time.monotonic() - self._failed[0] < RECONNECT_S:
            raise psycopg.OperationalError(str(self._failed[1])) from self._failed[1]
        try:
            db: psycopg.Connection[Any] = psycopg.connect(self._conninfo, autocommit=True)
        except psycopg.Error as exc:
            self._failed = time.monotonic(), exc
            raise
        self._failed = None
        db.adapters.register_dumper(bool, _Truth)
        db.adapters.register_dumper(str, _Text)
        db.execute(_text(f"SET lock_timeout = {int(1000 * BUSY_S)}"))
        # If a power cut ends this process, the server must notice soon, as it keeps our locks until then.
        for name, value in ENDS.items():
            db.execute(_text(f"SET {name} = {value}"))
        if self._idle_s is not None:
            db.execute(_text(_idle(self._idle_s)))
        self._db = db
        for name, shared in self._held:
            if not self._try_lock(name, shared):
                db.close()
                raise psycopg.OperationalError(f"another process has taken the lock {name!r}")
        return db

    def _wait_to_share(self, name: str) -> bool:
        try:
            self.execute(f"SELECT pg_advisory_lock_shared({_key(name)})")
        except LockNotAvailable:
            return False
        return True

    def _try_lock(self, name: str, shared: bool) -> bool:
        row = self.execute(f"SELECT pg_try_advisory_lock{_suffix(shared)}({_key(name)})").fetchone()
        return bool(row[0])


def _closing(cursor: "psycopg.ServerCursor[Any]") -> Iterator[Sequence[Any]]:
    with cursor:
        yield from cursor


def _idle(seconds: float) -> str:
    return f"SET idle_in_transaction_session_timeout = {int(1000 * seconds)}"


def _suffix(shared: bool) -> str:
    return "_shared" if shared else ""


def _key(name: str) -> int:
    """Derive a lock's 64-bit number from its name."""
    return int.from_bytes(b"sedge" + name.encode()[:3].ljust(3), "big")


# Enough entries: there are few statements, and long ones differ only in their number of values.
@lru_cache(256)
def _translated(sql: str) -> LiteralString:
    """Return the statement with psycopg's placeholders."""
    marks = {"?": "%s", "%": "%%"}
    return _text(_VALUES.sub(lambda found: marks.get(found[0]) or f"%({found[1]})s", sql))


def _text(sql: Any) -> LiteralString:
    """Cast a statement to the type that psycopg requires: ours are safe, but not all are literals."""
    return cast(LiteralString, sql)


def _line(error: Exception) -> str:
    """Format an error as one line."""
    return " ".join(str(error).split())
