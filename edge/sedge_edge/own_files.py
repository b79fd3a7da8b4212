"""[frozen]: bases that the device has as files of its own, so that nobody sends them.

A base that came with the device, in an app's assets or on a mounted disk, is copied chunk by chunk, each
checked by its digest, when an order needs it. Whatever a file does not have comes as it always does.
"""

import hashlib
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.disk import opened, read_at
from sedge_protocol.wire.transfer import Manifest

# A base in another precision has so many times as many bytes.
PRECISIONS = (0.25, 0.5, 1.0, 2.0, 4.0)


class DeviceBlobs(BlobFolder):
    """The blobs of a device; ``files`` has, by SHA-256, those that may be on it already."""

    def __init__(
        self, root: Path, share: float = 1.0, files: Mapping[bytes, Path] | None = None
    ) -> None:
        super().__init__(root, share=share)
        self._files = dict(files or {})
        self._told: set[bytes] = set()
        self._unreadable: set[Path] = set()
        self._log = logging.getLogger("sedge.edge")

    def open_part(self, owner: str, manifest: Manifest) -> set[int]:
        """The chunks of a blob that have arrived already, or are in the device's own file."""
        held = super().open_part(owner, manifest)
        path = self._files.get(manifest.sha256)
        if path is None:
            self._tell_of_another(manifest)
            return held
        missing = [index for index in range(manifest.count) if index not in held]
        try:
            held |= self._copied(path, owner, manifest, missing)
        except OSError as exc:
            self._tell(manifest, f"{path}: {exc.strerror}")
        return held

    def _copied(self, path: Path, owner: str, manifest: Manifest, missing: list[int]) -> set[int]:
        """Copy the chunks that the file has right. Raises ``OSError`` for a file that cannot be read."""
        copied: set[int] = set()
        with opened(path, os.O_RDONLY) as descriptor:
            size = os.fstat(descriptor).st_size
            if size != manifest.size:
                self._tell(manifest, f"{path} has {size} bytes, expected {manifest.size}")
                return copied
            for index in missing:
                offset, length = manifest.span(index)
                data = read_at(descriptor, length, offset)
                if len(data) == length and manifest.matches(index, data):
                    self.write_part(owner, manifest, index, data)
                    copied.add(index)
        if len(copied) < len(missing):
            wrong = f"{len(missing) - len(copied)} of {manifest.count} chunks are not the base's"
            self._tell(manifest, f"{path}: {wrong}")
        return copied

    def _tell_of_another(self, manifest: Manifest) -> None:
        sizes = [self._size(path) for path in self._files.values()]
        if any(manifest.size == size * times for size in sizes for times in PRECISIONS):
            self._tell(manifest, f"{manifest.size} bytes that [frozen] has by no such name")

    def _size(self, path: Path) -> int:
        """The bytes of a file; 0 where there is none, or none that can be looked at, which is one line."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return 0
        except OSError as exc:
            if path not in self._unreadable:
                self._unreadable.add(path)
                self._log.warning("[frozen] %s: %s, expected a readable file", path, exc.strerror)
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def _tell(self, manifest: Manifest, what: str) -> None:
        """One line for each blob: an order comes again, and so does the need."""
        if manifest.sha256 not in self._told:
            self._told.add(manifest.sha256)
            self._log.warning("base %s: %s; fetching it", manifest.sha256.hex()[:16], what)


def own_files(frozen: Mapping[str, Path]) -> dict[bytes, Path]:
    """The files of [frozen] by SHA-256. Raises ``ConfigError`` for a name that is none."""
    found: dict[bytes, Path] = {}
    for name, path in frozen.items():
        try:
            sha256 = bytes.fromhex(name)
        except ValueError:
            sha256 = b""
        if len(sha256) != hashlib.sha256().digest_size:
            raise ConfigError("frozen", name, "64 hex digits, as sha256sum frozen.bin prints them")
        found[sha256] = path
    return found


def check_files(files: Mapping[bytes, Path], needed: bytes | None) -> str:
    """What the doctor says of them; ``needed`` is the base of the newest run, None if there is none.

    Raises ``StorageError`` for a file that is missing, or is not what its name says.
    """
    for sha256, path in files.items():
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").digest()
        except OSError as exc:
            raise StorageError(f"{path}: {exc.strerror}") from exc
        if found != sha256:
            raise StorageError(f"{path} has SHA-256 {found.hex()}, expected {sha256.hex()}")
    said = f"{len(files)} files are what their names say"
    if needed is None:
        return said
    return f"{said}; the newest run's base is {'one' if needed in files else 'none'} of them"
