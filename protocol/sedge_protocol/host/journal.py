"""Stores one struct in a file. Each commit replaces it atomically and durably.

    8 bytes "SEDGEJNL" | u32 schema | 32 bytes SHA-256 of schema and body | body (MessagePack)

A journal holds small state that a program must remember (the agent's outbox, a resume point); large data
goes to blobs. A file that is damaged or has a different schema is rejected, not converted. The free-space
floor of blobs.py does not apply here, so that the program can still record that the disk is full.
"""

import hashlib
import os
import struct
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from sedge_protocol.errors import LocalError, StorageError
from sedge_protocol.host.disk import make_folder, opened, read_at, replace_file, translated

MAGIC = b"SEDGEJNL"
_SCHEMA = struct.Struct("<I")
_BODY = len(MAGIC) + _SCHEMA.size + hashlib.sha256().digest_size

T = TypeVar("T", bound=msgspec.Struct)


class Journal(Generic[T]):
    """A file at ``path`` that stores one value of ``type``. A missing folder is created.

    Increase ``schema`` with every change to the struct that would change the meaning of older files.
    """

    def __init__(self, path: Path, type: type[T], schema: int) -> None:
        self._path = path
        self._schema = schema
        self._decoder = msgspec.msgpack.Decoder(type)
        make_folder(path.parent)

    def load(self) -> T | None:
        """Return the value last committed, or None.

        Raises ``StorageError`` for a file that is damaged, has a different schema, or is not a journal.
        """
        with translated("read journal", self._path):
            if not self._path.exists():
                return None
            with opened(self._path, os.O_RDONLY) as descriptor:
                data = read_at(descriptor, os.fstat(descriptor).st_size, 0)
        return self._decode(data)

    def commit(self, value: T) -> None:
        """Replace the value; durable on return.

        Raises ``StorageError`` if the disk fails. The file then holds the old value or, if only the last
        step failed, the new one, but never a mixture. Raises ``LocalError`` for a value that ``load`` would
        refuse.
        """
        try:
            body = msgspec.msgpack.encode(value)
            self._decoder.decode(body)
        except (ValueError, RecursionError) as exc:  # from msgspec, such as for invalid text
            raise LocalError(f"journal {self._path}: value breaks its own schema: {exc}") from exc
        schema = _SCHEMA.pack(self._schema)
        data = MAGIC + schema + hashlib.sha256(schema + body).digest() + body
        with translated("write journal", self._path):
            replace_file(self._path, data, self._path.with_name(self._path.name + ".tmp"))

    def _decode(self, data: bytes) -> T:
        if data[: len(MAGIC)] != MAGIC or len(data) < _BODY:
            raise self._damaged(f"its {len(data)} bytes are not a journal")
        head = data[len(MAGIC) : len(MAGIC) + _SCHEMA.size]
        sha256, body = data[len(MAGIC) + _SCHEMA.size : _BODY], data[_BODY:]
        if hashlib.sha256(head + body).digest() != sha256:
            raise self._damaged("its sha256 does not match")
        (schema,) = _SCHEMA.unpack(head)
        if schema != self._schema:
            raise StorageError(
                f"journal {self._path}: schema {schema}, this version reads {self._schema}; "
                "nothing was changed"
            )
        try:
            return self._decoder.decode(body)
        except (ValueError, RecursionError) as exc:  # from msgspec: bad schema, UTF-8 or nesting
            raise self._damaged(str(exc)) from exc

    def _damaged(self, what: str) -> StorageError:
        return StorageError(
            f"journal {self._path}: damaged, {what}; restore the file, or move it away to start over "
            "without its contents"
        )
