"""The interfaces of a store's parts: a SQL dialect for rows, blobs, and upload parts on disk.

Each query is written once, in SQL that both SQLite and PostgreSQL accept: ``?`` and ``:name`` for values,
``FOR UPDATE`` and ``FOR SHARE`` for rows that no one else may change in the meantime. A ``Dialect`` covers
the differences. To support a third store, add a ``Dialect`` or a ``Blobs``, accept its URL in settings.py,
open it in opening.py, and run the tests on it (tests/cloud/stores.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from sedge_protocol.wire.transfer import Manifest

# As a LIMIT, this means all rows in both databases.
MOST_ROWS = 2**31 - 1
Value = str | int | float | bytes | None
Values = Sequence[Value] | Mapping[str, Value]
# Maps a blob's SHA-256 to the URL at which devices can fetch it.
Public: TypeAlias = Callable[[bytes], str]


class Cursor(Protocol):
    """The result of a statement, as in Python's database API."""

    @property
    def rowcount(self) -> int:
        """Return the number of rows that the statement changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Dialect(Protocol):
    """One connection to a database. Except within ``errors``, methods raise the driver's own errors."""

    place: str
    """The database's name in error messages: a path, or a URL without its password."""
    clock: str
    """SQL expression for the database's time when it is evaluated, in seconds since 1970."""

    def errors(self) -> AbstractContextManager[None]:
        """Turn the driver's errors in a ``with`` block into ``StorageError`` with a one-line message."""
        ...

    def execute(self, sql: str, values: Values = ()) -> Cursor:
        """Execute one statement. Outside a transaction, the statement runs as its own transaction."""
        ...

    def table(self, name: str) -> tuple[int, Iterator[Sequence[Any]]]:
        """Return a table's number of columns, and its rows, read in batches within a transaction."""
        ...

    def insert(self, table: str, rows: Iterable[Sequence[Any]], width: int) -> None:
        """Insert whole rows with this number of columns, in the order of the table's columns."""
        ...

    def begin(self, *, alone: bool = False, flush: bool = True) -> None:
        """Begin a transaction that writes; of those that are ``alone`` only one runs at a time.

        Without ``flush`` its commit does not wait for the disk: a power cut may undo it, but only as a
        whole.
        """
        ...

    def begin_reading(self) -> None:
        """Begin a transaction that sees the database as it was at a single moment."""
        ...

    def commit(self, *, quiet: bool = False) -> None:
        """Commit a transaction. Its writes are durable, and other processes see ``version`` change.

        Writes are not durable if it began without ``flush``. After a ``quiet`` commit ``version`` may be
        unchanged.
        """
        ...

    def rollback(self) -> None:
        """Roll back a transaction. Harmless if an error has already ended it."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Return True within a transaction."""
        ...

    def limit_idle(self, seconds: float) -> None:
        """Let the server end our transactions after this many seconds without activity."""
        ...

    def schema(self) -> int:
        """Return the version number of the tables' schema; 0 if there are no tables."""
        ...

    def define(self, statements: str, schema: int) -> None:
        """Create or change tables with these statements in a transaction, and record the schema version."""
        ...

    def check(self, tables: str) -> None:
        """Raise ``StorageError`` if anything is damaged, or is not defined by ``tables``."""
        ...

    def version(self) -> int:
        """Return a number that changes whenever another connection has committed a change."""
        ...

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[bool]:
        """Hold a lock that all processes see; a ``shared`` one may be held by several at once.

        Yields True if it is held. Only a shared lock waits, and only for a short while.
        """
        ...

    def used_bytes(self) -> int:
        """Return the database's size in bytes. With SQLite, free space is not counted."""
        ...

    def shrink(self) -> None:
        """Return free space to the disk."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Blobs(Protocol):
    """Immutable blobs, named by their SHA-256. Every method raises ``StorageError`` when storage fails.

    The error's cause says whether a blob is lost for good or fails its hash (see ``Store.missing_reason``).
    """

    def write(self, data: bytes) -> bytes:
        """Store a blob, which is durable after ``settle``. Returns its SHA-256.

        Writing an existing blob makes it count as new.
        """
        ...

    def settle(self) -> None:
        """Make every blob that this process has written durable. Call it before a row names one."""
        ...

    def has(self, sha256: bytes) -> bool:
        """Return True if the complete blob is stored."""
        ...

    def size(self, sha256: bytes) -> int:
        """Return a blob's size in bytes."""
        ...

    def sizes(self) -> dict[bytes, int]:
        """Return the size of every complete blob, in bytes."""
        ...

    def read(self, sha256: bytes) -> bytes:
        """Read and check a blob. A blob that fails its hash is moved aside, and can be written again."""
        ...

    def read_span(self, sha256: bytes, offset: int, length: int) -> bytes:
        """Read ``length`` bytes of a blob from ``offset``, unchecked: the receiver has the digest."""
        ...

    def collect(
        self, keep: Set[bytes], min_age_s: float, min_part_age_s: float | None = None
    ) -> int:
        """Delete blobs that are neither in ``keep`` nor younger than ``min_age_s``.

        Returns the bytes freed.

        The age protects blobs that no row names yet. Upload parts may have their own minimum age.
        """
        ...


class Parts(Protocol):
    """Incomplete uploads, on this machine's own disk. If they are lost, devices send them again."""

    def require_room(self, length: int) -> None:
        """Raise ``StorageError`` if ``length`` more bytes would leave too little free space."""
        ...

    def open_part(self, owner: str, manifest: Manifest) -> set[int]:
        """Return the indices of the chunks that have already arrived.

        Raises ``StorageError`` if the remaining chunks would not fit on the disk.
        """
        ...

    def write_part(self, owner: str, manifest: Manifest, index: int, data: bytes) -> None:
        """Write a chunk, already checked against its digest, at its place in the part."""
        ...

    def take_part(self, owner: str, manifest: Manifest) -> bytes | None:
        """Turn a complete part into a blob and return its bytes.

        If the hash is wrong, discard it and return None.
        """
        ...

    def read_part(self, owner: str, manifest: Manifest) -> bytes | None:
        """Return the bytes of a complete part. If the hash is wrong, discards it and returns None."""
        ...

    def discard_part(self, owner: str, manifest: Manifest) -> None:
        """Delete the chunks of a blob that have arrived, and the record of this owner's part."""
        ...

    def trim_parts(self, owner: str, manifest: Manifest, others: int) -> None:
        """Delete an owner's oldest parts, except this blob's and a limited number of others."""
        ...
