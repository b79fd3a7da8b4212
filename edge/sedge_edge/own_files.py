"""[frozen]: bases that the device already has as files, so that it need not download them.

A base may have come with the device, in an app's assets or on a mounted disk. When an order needs it, it is
copied chunk by chunk, and each chunk is checked by its digest. Anything that the file lacks is downloaded
as usual.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from sedge_edge.rounds.frozen_data import known_base
from sedge_protocol.codec.vector import HEAD_BYTES, stated
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.disk import opened, read_at
from sedge_protocol.wire.transfer import Manifest


class DeviceBlobs(BlobFolder):
    """The blobs of a device. ``files`` maps SHA-256 to files that the device may already have."""

    def __init__(
        self, root: Path, share: float = 1.0, files: Mapping[bytes, Path] | None = None
    ) -> None:
        super().__init__(root, share=share)
        self._files = dict(files or {})
        self._told: set[bytes] = set()
        self._log = logging.getLogger("sedge.edge")

    def open_part(self, owner: str, manifest: Manifest) -> set[int]:
        """Return the chunks of a blob that have arrived, or have been copied from the device's own file."""
        held = super().open_part(owner, manifest)
        path = self._files.get(manifest.sha256)
        if path is None:
            self._tell_of_others(manifest)
            return held
        missing = [index for index in range(manifest.count) if index not in held]
        try:
            held |= self._copied(path, owner, manifest, missing)
        except OSError as exc:
            self._tell(manifest, f"{path}: {exc.strerror}")
        return held

    def _copied(self, path: Path, owner: str, manifest: Manifest, missing: list[int]) -> set[int]:
        """Copy chunks from the file if they match. Raises ``OSError`` if the file cannot be read."""
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
            wrong = f"{len(missing) - len(copied)} of {manifest.count} chunks do not match the base"
            self._tell(manifest, f"{path}: {wrong}")
        return copied

    def _tell_of_others(self, manifest: Manifest) -> None:
        """Log that no file matches a base, and which files may have been intended for it."""
        base = known_base(manifest.sha256)
        if base is None or not self._files:
            return
        others = [_described(path, base.layout.size) for path in self._files.values()]
        said = ["none of the files in [frozen]", *(text for text in others if text)]
        self._tell(manifest, "; ".join(said))

    def _tell(self, manifest: Manifest, what: str) -> None:
        """Log once for each blob, because a repeated order needs it again."""
        if manifest.sha256 not in self._told:
            self._told.add(manifest.sha256)
            self._log.warning("base %s: %s; downloading it", manifest.sha256.hex()[:16], what)


def _described(path: Path, size: int) -> str:
    """Return why a file is not the base of ``size`` values, or "" if it belongs to another model."""
    try:
        with opened(path, os.O_RDONLY) as descriptor:
            head = stated(read_at(descriptor, HEAD_BYTES, 0))
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    if head is None or head.size != size:
        return ""
    return f"{path} has as many values, but as {head.coding}: another precision of the base or another base"


def own_files(frozen: Mapping[str, Path]) -> dict[bytes, Path]:
    """Return the files listed in [frozen], keyed by SHA-256. Raises ``ConfigError`` for an invalid name."""
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
    """Return the doctor's summary of these files. ``needed`` is the newest run's base, if it has one.

    Raises ``StorageError`` for a missing file, or one whose content does not match its name.
    """
    for sha256, path in files.items():
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").digest()
        except OSError as exc:
            raise StorageError(f"{path}: {exc.strerror}") from exc
        if found != sha256:
            raise StorageError(f"{path} has SHA-256 {found.hex()}, expected {sha256.hex()}")
    said = f"{len(files)} files match their SHA-256"
    if needed is None:
        return said
    return f"{said}; the newest run's base is {'one' if needed in files else 'not one'} of them"
