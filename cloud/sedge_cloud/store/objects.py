"""Blobs in an object store (the extra ``stores``), and copies of them on this machine's disk.

    <prefix>/abcdef…          a blob; created once, and always complete
    <prefix>/abcdef….corrupt  a blob that failed its hash when read, kept for inspection
    <prefix>/clock            written when blobs are collected, to learn the server's time

Writes run in the background; ``settle`` waits for them. Blobs that were read or written are also copied to
a folder, so that a blob sent in a thousand chunks is fetched once; when the folder is full, the least
recently used copies are deleted. Copies are checked like objects, and can be lost without losing data. Only
this file uses obstore.
"""

import errno
import hashlib
import os
import re
from collections.abc import Generator, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from sedge_cloud.store.settings import BlobsConfig
from sedge_protocol.errors import ConfigError, StorageError, os_reason
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.transfer import Manifest

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Config

# How many objects are written at once, and how many bytes may wait to be written.
WRITERS = 8
WAITING_BYTES = 64 * 2**20
# Limits in seconds: for connecting, for a whole request, and for retrying a request.
CONNECT_S, REQUEST_S, REPEAT_S = 4, 120, 5
# How long to wait for a server that has just failed, in seconds.
PATIENCE_S = 0.2
# How long a presigned URL is valid. An order that is sent again gets new URLs.
SIGNED = timedelta(days=1)
# The share of its limit to which a full cache is trimmed, and the maximum length of an error message.
KEPT_SHARE, MAX_LINE = 0.9, 400
_NAME = re.compile(r"[0-9a-f]{64}")
# Match the status in an S3 server's error, and the code and text in its XML.
_ANSWER = re.compile(r"status code: (?P<status>\d{3}[\w ]*)")
_XML = re.compile(r"<(Code|Message)>([^<]*)</")
# A server with a full disk returns status 507 or its own code, or simply fails (SeaweedFS).
_FULL = re.compile(r"^5\d\d |StorageFull|Quota")


def open_objects(config: BlobsConfig) -> "ObjectStore":
    """Open the object store that the configuration names. Raises ``ConfigError``."""
    assert config.url is not None
    options: dict[str, Any] = {
        "endpoint": config.endpoint,
        "region": config.region,
        "access_key_id": config.key_id,
        "secret_access_key": config.secret(),
    }
    given = {key: value for key, value in options.items() if value is not None}
    try:
        if config.url.startswith("file:"):
            return LocalStore.from_url(config.url, mkdir=True)
        return S3Store.from_url(
            config.url,
            config=cast("S3Config", given),
            client_options={
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=REQUEST_S),
                "allow_http": config.endpoint is not None and config.endpoint.startswith("http:"),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=REPEAT_S)},
        )
    except (BaseError, ValueError, OSError) as exc:
        text = _line(exc)
        if "builder error" in text:  # obstore's only hint at missing certificates
            text = f"the system's certificates: apt install ca-certificates ({text})"
        raise ConfigError("blobs.url", config.url, text) from exc


class ObjectBlobs:
    """Blobs in an object store (contract.Blobs).

    ``place`` is the store's name in error messages. Local copies are in ``folder``, and take at most
    ``limit`` bytes.
    """

    def __init__(self, place: str, objects: "ObjectStore", folder: Path, limit: int) -> None:
        self.place = place
        self.copies = BlobFolder(folder, durable=False)
        self._objects, self._folder, self._limit = objects, folder / "blobs", limit
        self._waiting: dict[bytes, tuple[bytes, Future[None]]] = {}
        self._error: StorageError | None = None  # error of the last settle()
        self._pool: ThreadPoolExecutor | None = None
        self._trim()

    def require(self) -> None:
        """Raise ``StorageError`` unless the bucket exists and is accessible."""
        with self._errors("look into"):
            next(iter(obstore.list(self._objects, chunk_size=1)), None)

    def write(self, data: bytes) -> bytes:
        """Start storing a blob in the background. Returns its SHA-256."""
        sha256 = hashlib.sha256(data).digest()
        if sha256 in self._waiting:
            return sha256
        if sum(len(waiting) for waiting, _ in self._waiting.values()) > WAITING_BYTES:
            self.settle()
        self._waiting[sha256] = data, self._put(sha256, data)
        self._copy(data)
        return sha256

    def settle(self) -> None:
        """Wait until every blob is stored. Before it raises, it restarts the writes that failed.

        After an error the next wait is short, as the coordinator can do nothing else in the meantime.
        """
        error, patience = self._error, None if self._error is None else PATIENCE_S
        if patience is not None:
            wait([done for _, done in self._waiting.values()], patience)
        self._error = None
        for sha256, (data, done) in list(self._waiting.items()):
            if patience is not None and not done.done():
                self._error = error
                continue
            try:
                with self._errors("write blob", sha256):
                    done.result()
                del self._waiting[sha256]
            except StorageError as exc:
                self._error = exc
                self._waiting[sha256] = data, self._put(sha256, data)
        if self._error is not None:
            raise StorageError(str(self._error)) from self._error.__cause__

    def has(self, sha256: bytes) -> bool:
        """Return True if the blob is stored or being written."""
        if sha256 in self._waiting:
            return True
        with self._errors("look up blob", sha256):
            try:
                obstore.head(self._objects, sha256.hex())
            except FileNotFoundError as exc:
                if _is_bucket_missing(exc):
                    raise
                return False
        return True

    def size(self, sha256: bytes) -> int:
        """Return a blob's size in bytes."""
        if sha256 in self._waiting:
            return len(self._waiting[sha256][0])
        with self._errors("look up blob", sha256):
            return obstore.head(self._objects, sha256.hex())["size"]

    def sizes(self) -> dict[bytes, int]:
        """Return the size of every blob, in bytes."""
        with self._errors("look into"):
            return {sha256: size for sha256, size, _ in self._listed()}

    def read(self, sha256: bytes) -> bytes:
        """Read and check a blob, from its local copy or else from the object, which is then copied."""
        if sha256 in self._waiting:
            return self._waiting[sha256][0]
        with suppress(StorageError):  # a damaged copy is moved aside
            if self._copies_has(sha256):
                return self.copies.read(sha256)
        with self._errors("read blob", sha256):
            data = bytes(obstore.get(self._objects, sha256.hex()).bytes())
        if hashlib.sha256(data).digest() != sha256:
            with self._errors("set aside corrupt blob", sha256):
                obstore.rename(self._objects, sha256.hex(), f"{sha256.hex()}.corrupt")
            text = f"{len(data)} bytes do not match its sha256"
            raise StorageError(f"read blob {self.place}/{sha256.hex()}: {text}")
        self._copy(data)
        return data

    def read_span(self, sha256: bytes, offset: int, length: int) -> bytes:
        """Read bytes of the blob's copy, which is created first if necessary."""
        with suppress(StorageError):
            if self._copies_has(sha256):
                return self.copies.read_span(sha256, offset, length)
        data = self.read(sha256)[offset : offset + length]
        if len(data) != length:
            where = f"{length - len(data)} bytes before {offset + length}"
            raise StorageError(f"read blob {self.place}/{sha256.hex()}: it ends {where}")
        return data

    def signed(self, sha256: bytes) -> str:
        """Return a URL that lets anybody GET the blob, valid for ``SIGNED``."""
        with self._errors("sign a URL of", sha256):
            return obstore.sign(cast("S3Store", self._objects), "GET", sha256.hex(), SIGNED)

    def collect(
        self, keep: Set[bytes], min_age_s: float, min_part_age_s: float | None = None
    ) -> int:
        """Delete old upload parts, and old objects that are not in ``keep``.

        The ages of objects are measured by the server's clock. Each object is checked again just before its
        deletion, as writing a blob again makes it count as new. This also works on a full server, which
        accepts no writes.
        """
        with suppress(StorageError):
            self.settle()
        self.copies.collect(keep, min_age_s, min_part_age_s)
        freed = 0
        with self._errors("collect in"):
            listed = list(self._listed())
            oldest = self._time(listed) - timedelta(seconds=min_age_s)
            for sha256, size, modified in listed:
                if sha256 in keep or sha256 in self._waiting:
                    continue
                is_young = modified > oldest or self._modified(sha256.hex()) > oldest
                if not (min_age_s and is_young):
                    obstore.delete(self._objects, sha256.hex())
                    freed += size
        return freed

    def _put(self, sha256: bytes, data: bytes) -> "Future[None]":
        if self._pool is None:
            self._pool = ThreadPoolExecutor(WRITERS, "blobs")
        return self._pool.submit(self._send, sha256.hex(), data)

    def _send(self, name: str, data: bytes) -> None:
        """Create an object. If it already exists, write it again so that no collection deletes it."""
        try:
            obstore.put(self._objects, name, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            obstore.put(self._objects, name, data, mode="overwrite")

    def _listed(self) -> Iterator[tuple[bytes, int, datetime]]:
        """Yield hash, size and modification time of every blob."""
        for page in obstore.list(self._objects, chunk_size=1000):
            for found in page:
                if _NAME.fullmatch(found["path"]):
                    yield bytes.fromhex(found["path"]), found["size"], found["last_modified"]

    def _time(self, listed: "list[tuple[bytes, int, datetime]]") -> datetime:
        """Return the server's time, or its newest object's time if the server is too full for a write."""
        with suppress(BaseError, OSError):
            obstore.put(self._objects, "clock", b"now", mode="overwrite")
            return self._modified("clock")
        return max(
            (modified for _, _, modified in listed), default=datetime.min.replace(tzinfo=UTC)
        )

    def _modified(self, name: str) -> datetime:
        return obstore.head(self._objects, name)["last_modified"]

    def _copies_has(self, sha256: bytes) -> bool:
        """Return True if there is a copy, and mark it as recently used."""
        try:
            os.utime(self._folder / sha256.hex())
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise StorageError(f"copy of blob {sha256.hex()}: {os_reason(exc)}") from exc
        return True

    def _copy(self, data: bytes) -> None:
        """Store a copy if the disk has room for it."""
        with suppress(StorageError):
            self.copies.write(data)
            self._copied += len(data)
            if self._copied > self._limit:
                self._trim()

    def _trim(self) -> None:
        """Measure the copies, and delete the least recently used ones if they exceed the limit."""
        found: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        self._copied = sum(size for _, size, _ in found)  # grows with each copy until the next look
        if self._copied <= self._limit:
            return
        for _, size, path in sorted(found):
            path.unlink(missing_ok=True)
            self._copied -= size
            if self._copied <= self._limit * KEPT_SHARE:
                break

    @contextmanager
    def _errors(self, doing: str, sha256: bytes = b"") -> Generator[None]:
        """Turn an obstore error into a one-line ``StorageError`` with a cause for ``missing_reason``."""
        try:
            yield
        except (BaseError, FileNotFoundError, OSError, ValueError) as exc:
            where = f"{self.place}/{sha256.hex()}" if sha256 else self.place
            is_lost = isinstance(exc, FileNotFoundError) and not _is_bucket_missing(exc)
            cause = OSError(errno.ENOENT, "no such object") if is_lost else exc
            text = _line(exc)
            hint = " (is the object store full?)" if "write" in doing and _FULL.search(text) else ""
            raise StorageError(f"{doing} {where}: {text}{hint}") from cause


class ObjectParts:
    """Upload parts on this machine's disk, which become objects when complete (contract.Parts)."""

    def __init__(self, blobs: ObjectBlobs) -> None:
        self._blobs, self._disk = blobs, blobs.copies
        self.require_room, self.open_part = self._disk.require_room, self._disk.open_part
        self.write_part, self.trim_parts = self._disk.write_part, self._disk.trim_parts
        self.read_part, self.discard_part = self._disk.read_part, self._disk.discard_part

    def take_part(self, owner: str, manifest: Manifest) -> bytes | None:
        """Turn a complete part into a local copy, and start storing it as an object."""
        data = self._disk.take_part(owner, manifest)
        if data is not None:
            self._blobs.write(data)
        return data


def _is_bucket_missing(error: Exception) -> bool:
    """Return True if the whole bucket is missing, rather than one object."""
    return "NoSuchBucket" in str(error)


def _line(error: Exception) -> str:
    """Format an error as one line of limited length, keeping only the code and message of an XML answer."""
    text = " ".join(str(error).partition("Debug source")[0].split())
    if answer := _ANSWER.search(text):
        text = ": ".join([answer["status"].strip(), *(said for _, said in _XML.findall(text))])
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}…"
