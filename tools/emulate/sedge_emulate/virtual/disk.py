"""The disk that all virtual devices of one host share: a file that several of them hold is stored once.

A device sees its own part (``DeviceDisk``, which replaces an agent's blob folder): exactly the blobs that
it has fetched, even partially, or made itself. There are three kinds of files:

    blobs/<hash>      transferred blobs, named by their SHA-256: bundles, models, deltas, patches
    vectors/<name>    values that only one device keeps: its own model, its residual
    shared/<hash>     values that several devices may keep: versions of the global model, masks

A file is deleted when the last device releases it. A vector's file is moved to spare/ instead:
overwriting it later takes a sixteenth of the time of writing a new file. Shared files are deleted,
because they are never overwritten, so spare/ would grow without bound. Updates are small, so they are
kept in memory until the coordinator has acknowledged them. Worker processes read and write the same
folders (workers/job_disk.py).

Workers may begin a job before its device has fetched its blobs. A missing blob is then copied from
``source``, the coordinator's store; when the device fetches it later, the host already has it.

While an interrupted run is replayed, no job writes its files again. So until ``go_live``, no file may
be deleted either: a file that has been released may be needed again. Updates are an exception: they
come from the cache and are released as usual, because all updates of a run would not fit into memory.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Set
from pathlib import Path

from sedge_edge.jobs.storage import WholeBlobs
from sedge_protocol.errors import StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.wire.transfer import Manifest


class HostDisk:
    """The files below ``folder`` that devices share, and how many devices hold each file."""

    def __init__(self, folder: Path, live: bool = True, source: WholeBlobs | None = None) -> None:
        self._live = live
        self._source = source
        self._released: set[bytes] = set()
        self.blobs = folder / "blobs"
        self.vectors = folder / "vectors"
        self.shared = folder / "shared"
        self.spare = folder / "spare"
        for path in (self.blobs, self.vectors, self.shared, self.spare):
            with translated("make folder", path):
                path.mkdir(parents=True, exist_ok=True)
        with translated("read folder", self.blobs):
            files = [path.name for path in self.blobs.iterdir() if not path.suffix]
        self._files = {bytes.fromhex(name) for name in files}
        self._holders: Counter[bytes] = Counter()
        self._memory: dict[bytes, bytes] = {}
        self._parts: dict[bytes, dict[int, bytes]] = {}

    def hold(self, name: bytes) -> None:
        """Add a holder to this file's count."""
        self._holders[name] += 1
        self._released.discard(name)

    def go_live(self) -> None:
        """Delete the files released so far, and from now on delete each file when it is released."""
        self._live = True
        while self._released:
            self._remove(self._released.pop())

    def release(self, name: bytes) -> None:
        """Remove a holder from this file's count, and delete the file once the count is 0."""
        self._holders[name] -= 1
        if self._holders[name] > 0:
            return
        del self._holders[name]
        if self._live or name in self._memory:
            self._remove(name)
        else:
            self._released.add(name)

    def drop(self, name: bytes) -> None:
        """Delete a file that a job has written, unless a device holds it."""
        self.hold(name)
        self.release(name)

    def _remove(self, name: bytes) -> None:
        self._parts.pop(name, None)
        if self._memory.pop(name, None) is not None:
            return
        if name in self._files:
            path = self.blobs / name.hex()
            with translated("remove", path):
                path.unlink(missing_ok=True)
            self._files.remove(name)
        shared = self.shared / name.hex()
        with translated("remove", shared):
            shared.unlink(missing_ok=True)
        vector = self.vectors / name.hex()
        with translated("set aside", vector), contextlib.suppress(FileNotFoundError):
            vector.rename(self.spare / vector.name)

    def remember(self, data: bytes) -> bytes:
        """Keep a blob in memory. Returns its SHA-256."""
        name = hashlib.sha256(data).digest()
        self._memory[name] = data
        return name

    def read(self, sha256: bytes) -> bytes:
        """Return a blob's content. Raises ``StorageError`` if it cannot be read."""
        if sha256 in self._memory:
            return self._memory[sha256]
        path = self.blobs / sha256.hex()
        with translated("read blob", path):
            return path.read_bytes()

    def has(self, sha256: bytes) -> bool:
        """Return True if the host has this blob."""
        return sha256 in self._memory or sha256 in self._files

    def bring(self, name: bytes) -> bool:
        """Copy a blob from ``source`` unless the host already has it.

        Returns False if ``source`` does not have it either.
        """
        if self.has(name):
            return True
        if self._source is None or not self._source.has(name):
            return False
        self._write(name, self._source.read(name))
        return True

    def put_chunk(self, manifest: Manifest, index: int, data: bytes) -> None:
        """Add a verified chunk of a blob that the host does not have yet."""
        self._parts.setdefault(manifest.sha256, {})[index] = data

    def join(self, manifest: Manifest) -> bool:
        """Assemble a blob from its chunks. Returns False if any are missing or the blob's hash is wrong."""
        parts = self._parts.pop(manifest.sha256, {})
        if len(parts) < manifest.count:
            return False
        data = b"".join(parts[index] for index in range(manifest.count))
        if hashlib.sha256(data).digest() != manifest.sha256:
            return False
        self._write(manifest.sha256, data)
        return True

    def _write(self, name: bytes, data: bytes) -> None:
        path = self.blobs / name.hex()
        partial = path.with_suffix(".part")
        with translated("write blob", path):
            partial.write_bytes(data)
            partial.replace(path)
        self._files.add(name)


class DeviceDisk:
    """One device's part of the host's disk. Every write is refused while ``full`` is set."""

    def __init__(self, host: HostDisk) -> None:
        self.host = host
        self.full = False
        self._names: set[bytes] = set()
        self._parts: dict[bytes, set[int]] = {}

    def take(self, name: bytes) -> None:
        """Make the device a holder of this file."""
        if name not in self._names:
            self._names.add(name)
            self.host.hold(name)

    def write(self, data: bytes) -> bytes:
        """Store a blob. Returns its SHA-256."""
        self._require_room()
        name = self.host.remember(data)
        self.take(name)
        return name

    def settle(self) -> None:
        """Do nothing: a virtual power cut destroys no files on this host."""

    def has(self, sha256: bytes) -> bool:
        """Return True if the device holds this blob."""
        return sha256 in self._names

    def read(self, sha256: bytes) -> bytes:
        """Return the content of a blob. Raises ``StorageError`` if the device does not hold it."""
        self._require_held(sha256)
        return self.host.read(sha256)

    def read_span(self, sha256: bytes, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a blob, starting at ``offset``."""
        return self.read(sha256)[offset : offset + length]

    def open_part(self, owner: str, manifest: Manifest) -> set[int]:
        """Return the indices of the chunks that have already arrived."""
        return set(self._parts.get(manifest.sha256, ()))

    def write_part(self, owner: str, manifest: Manifest, index: int, data: bytes) -> None:
        """Add a chunk that has been verified against its digest."""
        self._require_room()
        if manifest.sha256 not in self._parts:  # other devices' chunks count, too
            self.host.hold(manifest.sha256)
        self._parts.setdefault(manifest.sha256, set()).add(index)
        if not self.host.has(manifest.sha256):
            self.host.put_chunk(manifest, index, data)

    def finish_part(self, owner: str, manifest: Manifest) -> bool:
        """Turn a complete part into a blob.

        Returns False, and drops the part, if it is incomplete or damaged.
        """
        self._require_room()
        whole = self.host.has(manifest.sha256) or self.host.join(manifest)
        if whole:
            self.take(manifest.sha256)
        self._drop_part(manifest.sha256)
        return whole

    def collect(self, keep: Set[bytes], min_age_s: float) -> int:
        """Release every file that is not in ``keep``. Returns 0, since freed bytes are not counted."""
        for name in sorted(self._names - keep):
            self._names.remove(name)
            self.host.release(name)
        for name in sorted(self._parts.keys() - keep):
            self._drop_part(name)
        return 0

    def _drop_part(self, name: bytes) -> None:
        if self._parts.pop(name, None) is not None:
            self.host.release(name)

    def _require_room(self) -> None:
        if self.full:
            raise StorageError("disk full (emulated)")

    def _require_held(self, name: bytes) -> None:
        if name not in self._names:
            raise StorageError(f"blob {name.hex()[:16]} is not on this device")
