"""One job's access to the host's disk (virtual/disk.py), from a worker process.

Blobs that a job makes stay in memory and are returned with its answer. Vectors are written to files at
once. On another host (``Carried``), files arrive with the job and vectors are returned with the answer.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sedge_protocol.errors import StorageError
from sedge_protocol.host.disk import opened, translated, write_at
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.work import Step

# How many decoded global models a worker keeps: the round's, and older ones that stragglers start from.
KEPT_VERSIONS = 4


class JobBlobs:
    """One job's view of the host's blobs. It can read all of them; blobs that it writes stay in memory."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "blobs"
        self._written: dict[bytes, bytes] = {}

    def path(self, sha256: bytes) -> Path:
        """Return the path at which this blob is stored if the host has it."""
        return self._folder / sha256.hex()

    def has(self, sha256: bytes) -> bool:
        """Return True if the job can read this blob."""
        return sha256 in self._written or self.path(sha256).exists()

    def read(self, sha256: bytes) -> bytes:
        """Return a blob's content. Raises ``StorageError`` if it cannot be read."""
        if sha256 in self._written:
            return self._written[sha256]
        path = self.path(sha256)
        with translated("read blob", path):
            return path.read_bytes()

    def write(self, data: bytes) -> bytes:
        """Hold a blob in memory for ``read``. Returns its SHA-256."""
        name = hashlib.sha256(data).digest()
        self._written[name] = data
        return name


class JobVectors:
    """One job's view of the host's vectors.

    A vector that only one device keeps is named after the job, not after its content: the same job makes
    the same vectors, and hashing each would take as long as encoding the update. ``versions`` caches the
    global models that this process has decoded.
    """

    def __init__(self, home: Path, key: bytes, versions: dict[bytes, Theta]) -> None:
        self._folder = home / "vectors"
        self._shared = home / "shared"
        self._spare = home / "spare"
        self._key = key
        self._versions = versions
        self._kept = 0

    def has(self, name: bytes) -> bool:
        """Return True if the job can read this vector or mask."""
        return name in self._versions or self._lies(name)

    def read(self, name: bytes, layout: Layout) -> Theta:
        """Return a vector (n,), which must not be modified.

        Raises ``StorageError`` if it cannot be read.
        """
        if name in self._versions:
            # Write the file again if its last holder has deleted it: other processes may still need it.
            self.lay(name, self._versions[name].data, True)
            return self._versions[name]
        theta = self._vector(name)
        if theta.size != layout.size:
            raise StorageError(f"vector {name.hex()}: {theta.size} values, expected {layout.size}")
        return theta

    def keep(self, theta: Theta) -> bytes:
        """Store theta (n,). Returns its name."""
        self._kept += 1
        name = hashlib.sha256(self._key + bytes([self._kept])).digest()
        self.lay(name, theta.data.cast("B"), False)
        return name

    def _take_spare(self, path: Path) -> None:
        """Rename a spare file to ``path``, if there is one."""
        with os.scandir(self._spare) as spares:
            for spare in spares:
                try:
                    os.rename(spare.path, path)
                except FileNotFoundError:  # another worker took it
                    continue
                return

    def keep_version(self, theta: Theta, sha256: bytes, steps: Sequence[Step] = ()) -> None:
        """Store a global model (n,) as a file that all devices share, named by its hash.

        The caller has verified the hash.
        """
        self._versions[sha256] = theta
        if len(self._versions) > KEPT_VERSIONS:
            del self._versions[next(iter(self._versions))]
        self.lay(sha256, theta.data, True)

    def read_mask(self, name: bytes) -> bytes:
        """Return the bitmap of a mask. Raises ``StorageError`` if it cannot be read."""
        path = self._shared / name.hex()
        with translated("read mask", path):
            return path.read_bytes()

    def keep_mask(self, bitmap: bytes) -> bytes:
        """Store the bitmap of a mask. Returns its SHA-256."""
        name = hashlib.sha256(bitmap).digest()
        self.lay(name, memoryview(bitmap), True)
        return name

    def path(self, name: bytes) -> Path:
        """Return the path at which this vector or mask is stored if the host has it."""
        own = self._folder / name.hex()
        return own if own.exists() else self._shared / name.hex()

    def lay(self, name: bytes, data: memoryview, is_shared: bool) -> None:
        """Write a vector or mask. If it is shared, other jobs may write the same file."""
        if is_shared:
            self._share(name, data)
            return
        path = self._folder / name.hex()
        with translated("write vector", path):
            self._take_spare(path)
            # The file is written in place, because nothing reads it until the job's outcome is in the
            # cache.
            with opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
                # On ext4, allocating a new file's space in advance takes a tenth of the time of growing it
                # page by page.
                if hasattr(os, "posix_fallocate"):  # missing on macOS and Windows
                    os.posix_fallocate(descriptor, 0, data.nbytes)
                write_at(descriptor, data, 0)
                os.ftruncate(descriptor, data.nbytes)

    def _lies(self, name: bytes) -> bool:
        return self.path(name).exists()

    def _vector(self, name: bytes) -> Theta:
        path = self.path(name)
        with translated("read vector", path):
            return np.fromfile(path, np.float32)

    def _share(self, name: bytes, data: memoryview) -> None:
        """Write a shared file atomically. Jobs that write it at the same time write the same content."""
        path = self._shared / name.hex()
        if path.exists():
            return
        partial = self._shared / f"{name.hex()}.{self._key.hex()[:16]}.part"
        with translated("write vector", path):
            partial.write_bytes(data)
            partial.replace(path)


@dataclass(frozen=True)
class Carried:
    """The ``files`` sent with a group's jobs, and those ``written`` by them, as uint8 arrays by name."""

    files: Mapping[bytes, Any]
    written: dict[bytes, tuple[bool, Any]] = field(default_factory=dict[bytes, tuple[bool, Any]])


class CarriedBlobs(JobBlobs):
    """One job's blobs on a host that is not the emulation's own."""

    def __init__(self, carried: Carried) -> None:
        super().__init__(Path())
        self._carried = carried

    def has(self, sha256: bytes) -> bool:
        """Return True if the job can read this blob."""
        return sha256 in self._written or sha256 in self._carried.files

    def read(self, sha256: bytes) -> bytes:
        """Return a blob's content. Raises ``StorageError`` if it is missing from the job."""
        if sha256 in self._written:
            return self._written[sha256]
        return bytes(_carried(self._carried, sha256))


class CarriedVectors(JobVectors):
    """One job's vectors on a host that is not the emulation's own."""

    def __init__(self, carried: Carried, key: bytes, versions: dict[bytes, Theta]) -> None:
        super().__init__(Path(), key, versions)
        self._carried = carried

    def read_mask(self, name: bytes) -> bytes:
        """Return the bitmap of a mask. Raises ``StorageError`` if it is missing from the job."""
        return bytes(_carried(self._carried, name))

    def lay(self, name: bytes, data: memoryview, is_shared: bool) -> None:
        """Send a vector or mask back with the answer, unless it came with the job."""
        if name not in self._carried.files:
            self._carried.written[name] = is_shared, np.frombuffer(data, np.uint8)

    def _lies(self, name: bytes) -> bool:
        return name in self._carried.files or name in self._carried.written

    def _vector(self, name: bytes) -> Theta:
        return np.frombuffer(_carried(self._carried, name), np.float32)


def _carried(carried: Carried, name: bytes) -> memoryview:
    if name in carried.files:
        return memoryview(carried.files[name])
    if name in carried.written:
        return memoryview(carried.written[name][1])
    raise StorageError(f"{name.hex()[:16]} is missing from the job")
