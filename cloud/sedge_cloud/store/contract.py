"""What a store is made of: a dialect of SQL for its rows, a place for its blobs, a disk for parts.

The queries are written once (database.py), in SQL that SQLite and PostgreSQL read alike: ``?`` and
``:name`` for values, ``FOR UPDATE`` and ``FOR SHARE`` for rows that nobody may change meanwhile. A
``Dialect`` is what differs. A third store is another ``Dialect``, or another ``Blobs``, and a line in
opening.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from sedge_protocol.wire.transfer import Manifest

# All rows, as a number that both databases take.
MOST_ROWS = 2**31 - 1
Value = str | int | float | bytes | None
Values = Sequence[Value] | Mapping[str, Value]
# The URL at which devices find a blob, by its SHA-256.
Public: TypeAlias = Callable[[bytes], str]


class Cursor(Protocol):
    """The outcome of a statement, as Python's database API has it."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement has changed."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Every row that is left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Dialect(Protocol):
    """One connection to a database. Outside of ``errors`` its methods raise the driver's own errors."""

    place: str
    """What error messages call the database: a path, or a URL without its password."""
    clock: str
    """An expression for the database's clock, in seconds since 1970: at its execution."""

    def errors(self) -> AbstractContextManager[None]:
        """Turn the driver's errors into ``StorageError``, a line each."""
        ...

    def execute(self, sql: str, values: Values = ()) -> Cursor:
        """Execute one statement; outside a transaction it is its own transaction."""
        ...

    def table(self, name: str) -> tuple[int, Iterator[Sequence[Any]]]:
        """How many columns a table has, and its rows, a few at a time, within a transaction."""
        ...

    def insert(self, table: str, rows: Iterable[Sequence[Any]], width: int) -> None:
        """Insert whole rows with this number of columns, in the order of the table's columns."""
        ...

    def begin(self, *, alone: bool = False, flush: bool = True) -> None:
        """Begin a transaction that writes; ``alone``: no other one writes anything meanwhile.

        Without ``flush`` its commit does not wait for the disk: a power cut may undo it, whole.
        """
        ...

    def begin_reading(self) -> None:
        """Begin a transaction that sees the database as it is at one moment."""
        ...

    def commit(self, *, quiet: bool = False) -> None:
        """End a transaction: other processes' ``version`` changes, and what it wrote is durable.

        Unless it began without ``flush``. After a ``quiet`` one ``version`` may be what it was.
        """
        ...

    def rollback(self) -> None:
        """Undo a transaction, also one that an error has ended already."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun."""
        ...

    def limit_idle(self, seconds: float) -> None:
        """Let the server end our transactions after this much idle time."""
        ...

    def schema(self) -> int:
        """The number of the tables' schema; 0 when there are none."""
        ...

    def define(self, statements: str, schema: int) -> None:
        """Make or change tables by statements, within a transaction; then they are of this schema."""
        ...

    def check(self, tables: str) -> None:
        """Raise ``StorageError`` for damage, and for anything that ``tables`` do not define."""
        ...

    def version(self) -> int:
        """A number that changes whenever another connection has committed something."""
        ...

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[bool]:
        """Hold a lock that all processes see, or, ``shared``, hold it with others who do.

        Whether it is held: nothing waits, but for a short while whoever shares it.
        """
        ...

    def used_bytes(self) -> int:
        """The database's size without space that is free."""
        ...

    def shrink(self) -> None:
        """Give free space back."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Blobs(Protocol):
    """Immutable blobs by their SHA-256. Every method raises ``StorageError`` when the place refuses.

    A blob that is lost for good, or does not have its hash, is known by the error's cause: see
    ``Store.missing_reason``.
    """

    def write(self, data: bytes) -> bytes:
        """Store a blob, durable once settled; returns its SHA-256. An existing blob counts as new again."""
        ...

    def settle(self) -> None:
        """Make every blob that this process has written durable: before a row names it."""
        ...

    def has(self, sha256: bytes) -> bool:
        """Whether the whole blob is here."""
        ...

    def size(self, sha256: bytes) -> int:
        """Length of a blob, in bytes."""
        ...

    def sizes(self) -> dict[bytes, int]:
        """Every whole blob and its size, in bytes."""
        ...

    def read(self, sha256: bytes) -> bytes:
        """A blob, checked. One that fails its hash is set aside, so that it can be written again."""
        ...

    def read_span(self, sha256: bytes, offset: int, length: int) -> bytes:
        """``length`` bytes of a blob from ``offset``, unchecked: the receiver has the digest."""
        ...

    def collect(
        self, keep: Set[bytes], min_age_s: float, min_part_age_s: float | None = None
    ) -> int:
        """Delete what is neither in ``keep`` nor younger than ``min_age_s``; the number of bytes freed.

        The age protects blobs that their writer has yet to name. Parts may have another one.
        """
        ...


class Parts(Protocol):
    """Uploads that are not whole yet, on this machine's own disk: who loses them gets them again."""

    def require_room(self, length: int) -> None:
        """Raise ``StorageError`` if ``length`` more bytes would leave too little free space."""
        ...

    def open_part(self, owner: str, manifest: Manifest) -> set[int]:
        """Which chunks have arrived already. Refuses a transfer whose rest would not fit."""
        ...

    def write_part(self, owner: str, manifest: Manifest, index: int, data: bytes) -> None:
        """Write a chunk, already checked against its digest, to its place."""
        ...

    def take_part(self, owner: str, manifest: Manifest) -> bytes | None:
        """Turn a complete part into a blob, and read it; None, and no part, if its hash is wrong."""
        ...

    def read_part(self, owner: str, manifest: Manifest) -> bytes | None:
        """The bytes of a complete part; None, and no part, if their hash is wrong."""
        ...

    def discard_part(self, owner: str, manifest: Manifest) -> None:
        """Delete what has arrived of a blob, and the mark that it was this owner's."""
        ...

    def trim_parts(self, owner: str, manifest: Manifest, others: int) -> None:
        """Remove an owner's oldest parts, except this blob's and a limited number of others."""
        ...
