"""Immutable blobs on disk, named by their SHA-256, and partly received blobs. Both sides use it.

    blobs/abcdef…               a complete blob; appears only once it is checked and flushed
    parts/<owner>-<hash>.part   the chunks of a blob that have arrived; holes where chunks are missing
    parts/<owner>-<hash>.taken  an empty mark: this owner's part has become the blob, but is not settled
    parts/<hash>.<random>.tmp   a blob being written
    blobs/abcdef….corrupt       a blob that failed its hash on reading, kept for inspection

A part belongs to (owner, blob), whatever the chunk size, so a transfer that continues with smaller chunks
uses the same file. The folder does not know which blobs are needed; callers pass them to ``collect``.

Every fsync wears out an SD card, so they are used sparingly. Chunks are written without fsync, because
after a power cut their digests show which ones are intact. A blob's content is flushed before it gets its
name. ``settle`` flushes all new names together; call it before storing anything durable that names a blob.
"""

import contextlib
import hashlib
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Set
from pathlib import Path

from sedge_protocol.errors import LocalError, StorageError
from sedge_protocol.host.disk import (
    make_folder,
    opened,
    read_at,
    sync_folder,
    translated,
    write_and_rename,
    write_at,
)
from sedge_protocol.wire.transfer import Manifest

# The disk space that blobs leave free for the journals and the rest of the system. 5 % is what ext4
# reserves for root; 64 MiB is many times the size of any journal.
FREE_FRACTION = 0.05
FREE_MAX_BYTES = 64 * 2**20
READ_BYTES = 2**20
# How long a measurement of the folder's size is used.
MEASURE_S = 10.0
_OWNER = re.compile(r"[a-z0-9-]{1,48}")
_HASH_BYTES = 32
_NAME = re.compile(r"[0-9a-f]{64}")


class BlobFolder:
    """The blobs and parts in the folder ``root``, which is created if missing.

    A write that would leave less than ``min_free_bytes`` free is refused; the default is 5 % of the file
    system, at most 64 MiB. A write is also refused if the folder would then exceed ``share`` of its current
    size plus the free space. Every method raises ``StorageError`` when the disk fails. Threads may share
    one folder, as long as no two write the same part.

    A power cut may lose blobs, but only entire ones, written since the last call to ``settle``. With
    ``durable`` false nothing is flushed: blobs survive the end of this process, but not a power cut. Use
    that for emulation and simulation only.
    """

    def __init__(
        self,
        root: Path,
        min_free_bytes: int | None = None,
        durable: bool = True,
        share: float = 1.0,
    ) -> None:
        self._root = root
        self.share = share
        self._used, self._measure_at = 0, -math.inf
        self._durable = durable
        self._settling = threading.Lock()
        self._settled = not durable  # an earlier process may have been killed before it settled
        self._blobs = root / "blobs"
        self._parts = root / "parts"
        make_folder(self._blobs)
        make_folder(self._parts)
        if min_free_bytes is None:
            with translated("determine the size of", root):
                disk = os.statvfs(root)
            share = int(FREE_FRACTION * disk.f_blocks * disk.f_frsize)
            min_free_bytes = min(share, FREE_MAX_BYTES)
        self.min_free_bytes = min_free_bytes

    def write(self, data: bytes) -> bytes:
        """Store a blob unless it exists; ``settle`` makes it durable. Returns its SHA-256."""
        sha256 = hashlib.sha256(data).digest()
        path = self._blob(sha256)
        if self.has(sha256):
            with translated("keep blob", path):
                os.utime(path)  # so that collect does not delete an old blob that is in use again
            self._settled = not self._durable  # the process that wrote it may have been killed
            return sha256
        self._require_room(len(data), path)
        with translated("write blob", path):
            temporary = self._parts / f"{sha256.hex()}.{secrets.token_hex(4)}.tmp"
            write_and_rename(path, data, temporary, self._durable)
            self._settled = not self._durable
        return sha256

    def settle(self) -> None:
        """Make every blob in the folder durable, whichever thread wrote it."""
        with self._settling:
            if self._settled:
                return
            # Set before the fsync, because another thread may write a blob that this fsync misses.
            self._settled = True
            try:
                with translated("flush the folder", self._blobs):
                    sync_folder(self._blobs)
            except StorageError:
                self._settled = False
                raise

    def has(self, sha256: bytes) -> bool:
        """Return True if the complete blob is on disk."""
        path = self._blob(sha256)
        with translated("look up blob", path):
            return path.exists()

    def size(self, sha256: bytes) -> int:
        """Return the length of a blob in bytes."""
        path = self._blob(sha256)
        with translated("look up blob", path):
            return os.stat(path).st_size

    def sizes(self) -> dict[bytes, int]:
        """Return the size in bytes of every complete blob on disk, keyed by SHA-256."""
        found: dict[bytes, int] = {}
        with translated("look through", self._blobs):
            for path in self._blobs.iterdir():
                with contextlib.suppress(FileNotFoundError):  # deleted since the folder was listed
                    if _NAME.fullmatch(path.name):
                        found[bytes.fromhex(path.name)] = path.stat().st_size
        return found

    def read(self, sha256: bytes) -> bytes:
        """Read a blob. If its hash is wrong, sets the file aside, so that the blob can be fetched again."""
        path = self._blob(sha256)
        with translated("read blob", path), opened(path, os.O_RDONLY) as descriptor:
            data = read_at(descriptor, os.fstat(descriptor).st_size, 0)
        if hashlib.sha256(data).digest() != sha256:
            with translated("set aside corrupt blob", path):
                os.replace(path, path.with_suffix(".corrupt"))
            raise StorageError(f"read blob {path}: {len(data)} bytes do not match its sha256")
        return data

    def read_span(self, sha256: bytes, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a blob from ``offset``, unchecked; the receiver checks the digest."""
        path = self._blob(sha256)
        with translated("read blob", path), opened(path, os.O_RDONLY) as descriptor:
            data = read_at(descriptor, length, offset)
        if len(data) != length:
            raise StorageError(
                f"read blob {path}: it ends {length - len(data)} bytes before {offset + length}"
            )
        return data

    def open_part(self, owner: str, manifest: Manifest) -> set[int]:
        """Start or resume a transfer. Returns the indices of the chunks that have already arrived intact.

        ``owner`` is a device id or "fleet". Raises ``StorageError`` if the missing chunks would not fit on
        the disk. After a crash just before ``finish_part``, no chunk is missing. Reads one chunk at a time.
        """
        path = self._part(owner, manifest)
        held: set[int] = set()
        with translated("read part", path):
            if path.exists():
                held = _held_chunks(path, manifest)
            elif _taken(path).exists() and self.has(manifest.sha256):
                held = set(range(manifest.count))
        missing = manifest.size - sum(manifest.span(index)[1] for index in held)
        if missing:
            self._require_room(missing, path, reserve=False)
        return held

    def write_part(self, owner: str, manifest: Manifest, index: int, data: bytes) -> None:
        """Write a chunk, whose digest the caller has checked, at its offset. It is not durable yet."""
        path = self._part(owner, manifest)
        if not 0 <= index < manifest.count or len(data) != manifest.span(index)[1]:
            raise LocalError(
                f"part {path.name}: chunk {index} of {len(data)} bytes was not checked"
            )
        self._require_room(len(data), path)
        with translated("write part", path), opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
            write_at(descriptor, data, manifest.span(index)[0])

    def finish_part(self, owner: str, manifest: Manifest) -> bool:
        """Turn a complete part into a blob, durable once settled. Returns True if the blob then exists.

        If the hash is wrong, discards the part and returns False. If an earlier call finished before a
        crash, only the blob is left, and the result is True.
        """
        part, blob = self._part(owner, manifest), self._blob(manifest.sha256)
        with translated("finish part", part):
            if part.exists():
                return self._install(part, manifest, lambda piece: None)
            return blob.exists()

    def take_part(self, owner: str, manifest: Manifest) -> bytes | None:
        """Turn a complete part into a blob, durable once settled.

        Returns its bytes, or None for a wrong hash. May be repeated until ``discard_part`` is called.
        """
        part, pieces = self._part(owner, manifest), list[bytes]()
        with translated("take part", part):
            if part.exists():
                sound = self._install(part, manifest, pieces.append, _taken(part))
                return b"".join(pieces) if sound else None
            taken = _taken(part).exists()
        return self.read(manifest.sha256) if taken else None

    def read_part(self, owner: str, manifest: Manifest) -> bytes | None:
        """Return the bytes of a complete part, or discard it and return None if its hash is wrong."""
        part, pieces = self._part(owner, manifest), list[bytes]()
        with translated("read part", part):
            sound = _is_sound(part, manifest, False, pieces.append)
            if not sound:
                os.unlink(part)
        return b"".join(pieces) if sound else None

    def discard_part(self, owner: str, manifest: Manifest) -> None:
        """Delete an owner's part of a blob, and the mark that the owner took it."""
        path = self._part(owner, manifest)
        with translated("remove part", path):
            path.unlink(missing_ok=True)
            _taken(path).unlink(missing_ok=True)

    def trim_parts(self, owner: str, manifest: Manifest, others: int) -> None:
        """Delete an owner's oldest parts, leaving at most ``others`` in addition to this blob's part."""
        mine = self._part(owner, manifest)
        # An owner's name may begin with another's; the hash has a fixed length.
        length = len(mine.name)
        with translated("look for parts in", self._parts):
            found = self._parts.glob(f"{owner}-*{mine.suffix}")
            parts = [path for path in found if len(path.name) == length and path != mine]
            if len(parts) > others:
                parts.sort(key=lambda path: path.stat().st_mtime, reverse=True)
            for path in parts[others:]:
                path.unlink()

    def collect(
        self, keep: Set[bytes], min_age_s: float, min_part_age_s: float | None = None
    ) -> int:
        """Delete unneeded files that are at least ``min_age_s`` old. Returns the number of bytes freed.

        Unneeded files are blobs that are not in ``keep``, parts of such blobs or of complete ones,
        temporary files and corrupt blobs. Parts can have a longer minimum age, because their sender may be
        offline for a day. The age protects files that are about to be referenced by their writer. A clock
        that jumps back only makes files look younger. An age of 0 protects nothing.
        """
        names = {sha256.hex() for sha256 in keep}
        now = time.time()
        ages = (
            (self._parts.iterdir, min_age_s if min_part_age_s is None else min_part_age_s),
            (self._blobs.iterdir, min_age_s),
        )
        freed = 0
        with translated("collect in", self._root):
            for paths, age_s in ages:
                for path in list(paths()):
                    if not self._is_kept(path, names):
                        freed += _remove_if_older(path, now - age_s if age_s else math.inf)
        return freed

    def _is_kept(self, path: Path, names: Set[str]) -> bool:
        if path.suffix == ".part":
            name = path.stem[-2 * _HASH_BYTES :]
            return name in names and not self.has(bytes.fromhex(name))
        return path.name in names

    def _install(
        self,
        part: Path,
        manifest: Manifest,
        look: Callable[[bytes], object],
        mark: Path | None = None,
    ) -> bool:
        """Turn a part into its blob. If its size or hash is wrong, discard it and return False.

        ``mark`` is created just before the rename; if a power cut loses it, the part is resent. Raises
        ``OSError``.
        """
        blob = self._blob(manifest.sha256)
        if not _is_sound(part, manifest, self._durable, look):
            os.unlink(part)
            return False
        if mark is not None:
            with opened(mark, os.O_WRONLY | os.O_CREAT):
                pass
        os.replace(part, blob)
        self._settled = not self._durable
        return True

    def require_room(self, length: int) -> None:
        """Raise ``StorageError`` if ``length`` more bytes would leave too little free space."""
        self._require_room(length, self._root, reserve=False)

    def _require_room(self, length: int, path: Path, reserve: bool = True) -> None:
        """Raise ``StorageError`` if there is no room. With ``reserve``, count the bytes as used."""
        with translated("determine the free space of", self._root):
            disk = os.statvfs(self._root)
        free = disk.f_bavail * disk.f_frsize
        if free - length < self.min_free_bytes:
            raise StorageError(
                f"disk full: {path} needs {length} bytes, but {free} are free "
                f"and {self.min_free_bytes} must stay free"
            )
        if self.share < 1:
            self._require_share(length, free, path)
            self._used += length if reserve else 0

    def _require_share(self, length: int, free: int, path: Path) -> None:
        """Raise ``StorageError`` if the folder would exceed its share. Its size is measured only rarely."""
        now = time.monotonic()
        if now >= self._measure_at:
            with translated("look through", self._root):
                self._used = sum(map(_size, [*self._blobs.iterdir(), *self._parts.iterdir()]))
            self._measure_at = now + MEASURE_S
        limit = int(self.share * (self._used + free))
        if self._used + length > limit:
            self._measure_at = -math.inf
            raise StorageError(
                f"{path} needs {length} bytes, but {self._used} of {limit} are used: "
                f"limits.disk_share in edge.toml is {self.share:g}"
            )

    def _blob(self, sha256: bytes) -> Path:
        if len(sha256) != _HASH_BYTES:
            raise LocalError(f"blob name of {len(sha256)} bytes, expected {_HASH_BYTES}")
        return self._blobs / sha256.hex()

    def _part(self, owner: str, manifest: Manifest) -> Path:
        if not _OWNER.fullmatch(owner):  # the owner becomes part of a file name
            raise LocalError(f"part owner {owner!r} is not 1 to 48 of a-z, 0-9 and '-'")
        return self._parts / f"{owner}-{manifest.sha256.hex()}.part"


def _size(path: Path) -> int:
    """Return the disk space that a file occupies, in bytes, or 0 if it is gone. Raises ``OSError``."""
    with contextlib.suppress(FileNotFoundError):
        return 512 * path.stat().st_blocks
    return 0


def _taken(part: Path) -> Path:
    """Return the path of the file that marks a part as taken by its owner."""
    return part.with_suffix(".taken")


def _held_chunks(part: Path, manifest: Manifest) -> set[int]:
    """Return the indices of the chunks that are intact in a part. Raises ``OSError``.

    mmap is not used, because an unreadable sector would then raise SIGBUS instead of an error.
    """
    held: set[int] = set()
    with opened(part, os.O_RDONLY) as descriptor:
        for index in range(manifest.count):
            offset, length = manifest.span(index)
            data = read_at(descriptor, length, offset)
            if len(data) == length and manifest.matches(index, data):
                held.add(index)
    return held


def _is_sound(
    part: Path, manifest: Manifest, durable: bool, look: Callable[[bytes], object]
) -> bool:
    """Flush a part if ``durable``. Returns True if its size and hash match the manifest's.

    ``look`` is called with each piece read. Raises ``OSError``.
    """
    with opened(part, os.O_RDWR) as descriptor:
        try:
            if durable:
                os.fsync(descriptor)
        except OSError:
            os.unlink(part)  # its content is now unknown, see disk.write_and_rename
            raise
        digest = hashlib.sha256()
        size = 0
        while data := read_at(descriptor, READ_BYTES, size):
            digest.update(data)
            size += len(data)
            look(data)
    return size == manifest.size and digest.digest() == manifest.sha256


def _remove_if_older(path: Path, oldest: float) -> int:
    """Delete a file last written before ``oldest``. Returns the bytes freed. Raises ``OSError``."""
    with contextlib.suppress(FileNotFoundError):  # its owner may finish or discard it
        status = os.stat(path)
        if status.st_mtime <= oldest:
            os.unlink(path)
            return min(status.st_size, 512 * status.st_blocks)  # a part may have holes
    return 0
