"""What one job reads and writes on the host's disk (virtual/disk.py), from a worker process.

Blobs that it makes stay in memory until the answer takes them along; vectors go to files at once.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sedge_protocol.errors import StorageError
from sedge_protocol.host.disk import opened, translated, write_at
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Step

# Decoded global models kept in a worker: the round's, and those that stragglers still start from.
KEPT_VERSIONS = 4


class JobBlobs:
    """One job's view of the host's blobs: it reads all of them, and what it writes stays in memory."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "blobs"
        self._written: dict[bytes, bytes] = {}

    def has(self, sha256: bytes) -> bool:
        """Whether the blob is here."""
        return sha256 in self._written or (self._folder / sha256.hex()).exists()

    def read(self, sha256: bytes) -> bytes:
        """A blob."""
        if sha256 in self._written:
            return self._written[sha256]
        path = self._folder / sha256.hex()
        with translated("read blob", path):
            return path.read_bytes()

    def write(self, data: bytes) -> bytes:
        """Keep a blob for ``read``; gives its SHA-256."""
        name = hashlib.sha256(data).digest()
        self._written[name] = data
        return name


class JobVectors:
    """One job's view of the host's vectors.

    A vector that only its device keeps is named by the job and not by its content: the same job makes the
    same vectors, and hashing each would take as long as coding the update. ``versions`` are the global
    models that this process has decoded.
    """

    def __init__(self, home: Path, key: bytes, versions: dict[bytes, Theta]) -> None:
        self._folder = home / "vectors"
        self._shared = home / "shared"
        self._spare = home / "spare"
        self._key = key
        self._versions = versions
        self._kept = 0

    def has(self, name: bytes) -> bool:
        """Whether a vector or mask is here."""
        return name in self._versions or self._path(name).exists()

    def read(self, name: bytes, layout: Layout) -> Theta:
        """A vector (n,), not to be written to."""
        if name in self._versions:
            # Another process may read it next, and its file may have gone with its last holder.
            self._share(name, self._versions[name].data)
            return self._versions[name]
        path = self._path(name)
        with translated("read vector", path):
            theta = np.fromfile(path, np.float32)
        if theta.size != layout.size:
            raise StorageError(f"vector {path}: {theta.size} values, expected {layout.size}")
        return theta

    def keep(self, theta: Theta) -> bytes:
        """Keep theta (n,); gives its name."""
        self._kept += 1
        name = hashlib.sha256(self._key + bytes([self._kept])).digest()
        path = self._folder / name.hex()
        with translated("write vector", path):
            self._take_spare(path)
            # Under its own name at once: before the job's outcome is in the cache nobody reads this.
            with opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
                # Room for a new file at once takes ext4 a tenth of the time that it takes page by page.
                if hasattr(os, "posix_fallocate"):  # neither macOS nor Windows has it
                    os.posix_fallocate(descriptor, 0, theta.nbytes)
                write_at(descriptor, theta.data.cast("B"), 0)
                os.ftruncate(descriptor, theta.nbytes)
        return name

    def _take_spare(self, path: Path) -> None:
        """Rename a file that nobody needs any more to this path; do nothing where there is none."""
        with os.scandir(self._spare) as spares:
            for spare in spares:
                try:
                    os.rename(spare.path, path)
                except FileNotFoundError:  # another worker was faster
                    continue
                return

    def keep_version(self, theta: Theta, sha256: bytes, steps: Sequence[Step] = ()) -> None:
        """Keep a global model (n,) under its hash, which the caller has checked; a file for all devices."""
        self._versions[sha256] = theta
        if len(self._versions) > KEPT_VERSIONS:
            del self._versions[next(iter(self._versions))]
        self._share(sha256, theta.data)

    def read_mask(self, name: bytes) -> bytes:
        """The bitmap of a mask."""
        path = self._shared / name.hex()
        with translated("read mask", path):
            return path.read_bytes()

    def keep_mask(self, bitmap: bytes) -> bytes:
        """Keep the bitmap of a mask; gives its SHA-256."""
        name = hashlib.sha256(bitmap).digest()
        self._share(name, memoryview(bitmap))
        return name

    def _path(self, name: bytes) -> Path:
        own = self._folder / name.hex()
        return own if own.exists() else self._shared / name.hex()

    def _share(self, name: bytes, data: memoryview) -> None:
        """Write what several jobs may name. Each writes a whole file of the same content."""
        path = self._shared / name.hex()
        if path.exists():
            return
        partial = self._shared / f"{name.hex()}.{self._key.hex()[:16]}.part"
        with translated("write vector", path):
            partial.write_bytes(data)
            partial.replace(path)
