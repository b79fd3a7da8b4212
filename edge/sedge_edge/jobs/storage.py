"""Interfaces of the agent's storage: blobs, one durable value, and vectors that stay on the device.

The agent's core knows only these interfaces. On a device, all three store files in one folder. An emulator
may store them elsewhere.
"""

from collections.abc import Sequence, Set
from typing import Protocol, TypeVar

import numpy as np

from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.work import Step

# The maximum number of steps that may be stored in place of a global model. It is limited because every
# round decodes all of them.
MAX_KEPT_STEPS = 8

T = TypeVar("T")


class ReadableBlobs(Protocol):
    """Read access to immutable blobs."""

    def has(self, sha256: bytes) -> bool:
        """Return True if the complete blob is stored."""
        ...

    def read(self, sha256: bytes) -> bytes:
        """Return a blob after checking its hash. If the hash is wrong, the blob is deleted."""
        ...


class WholeBlobs(ReadableBlobs, Protocol):
    """Immutable blobs, with only the operations that a job needs."""

    def write(self, data: bytes) -> bytes:
        """Store a blob and return its SHA-256. The blob is durable only after ``settle``."""
        ...


class Blobs(WholeBlobs, Protocol):
    """Complete and partly received blobs. ``BlobFolder`` implements this and documents the methods."""

    def settle(self) -> None:
        """Make all blobs durable.

        Call it before each commit, because the committed state may name any of them.
        """
        ...

    def read_span(self, sha256: bytes, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a blob from ``offset`` on, without checking its hash."""
        ...

    def open_part(self, owner: str, manifest: Manifest) -> set[int]:
        """Return which chunks of a blob have arrived."""
        ...

    def write_part(self, owner: str, manifest: Manifest, index: int, data: bytes) -> None:
        """Write a chunk at its offset."""
        ...

    def finish_part(self, owner: str, manifest: Manifest) -> bool:
        """Turn a complete part into a blob. If its hash is wrong, delete the part and return False."""
        ...

    def collect(self, keep: Set[bytes], min_age_s: float) -> int:
        """Delete everything that is not in ``keep``. Returns the number of bytes freed.

        ``keep`` includes the names of vectors and masks, so that an implementation that stores these
        elsewhere can delete them in the same call.
        """
        ...


class DurableValue(Protocol[T]):
    """A single value that survives crashes and power loss. ``Journal`` implements it."""

    def load(self) -> T | None:
        """Return the last committed value, or None if there is none."""
        ...

    def commit(self, value: T) -> None:
        """Replace the value. The new one is durable on return."""
        ...


class Vectors(Protocol):
    """Immutable vectors and masks that never leave the device, each named by 32 bytes.

    They are the decoded global models, which are named by their hashes, and everything that ``Kept``
    (job.py) names: the device's own model, its residual, its last mask and so on. A coded patch is stored
    like a mask. Every method raises ``StorageError`` if the disk fails, or if the named entry is missing or
    damaged. A damaged entry counts as missing from then on.
    """

    def has(self, name: bytes) -> bool:
        """Return True if this vector or mask is stored."""
        ...

    def read(self, name: bytes, layout: Layout) -> Theta:
        """Return a vector (n,), read-only. Raises ``CodecError`` if its size does not match the layout."""
        ...

    def keep(self, theta: Theta) -> bytes:
        """Store theta (n,), which the caller must no longer change. Returns its name."""
        ...

    def keep_version(self, theta: Theta, sha256: bytes, steps: Sequence[Step]) -> None:
        """Store a global model (n,) under the SHA-256 of its float32 bytes, which the caller has checked.

        If ``steps`` lead to it from a stored model, an implementation may store only the steps.
        """
        ...

    def read_mask(self, name: bytes) -> bytes:
        """Return the bytes that ``keep_mask`` has stored: a mask's bitmap, a coded patch or moments."""
        ...

    def keep_mask(self, bitmap: bytes) -> bytes:
        """Store the bitmap of a mask, a coded patch or an optimizer's moments. Returns the SHA-256."""
        ...


class FolderVectors:
    """``Vectors`` stored as blobs of raw little-endian float32, each named by its SHA-256."""

    def __init__(self, blobs: WholeBlobs) -> None:
        self._blobs = blobs

    def has(self, name: bytes) -> bool:
        """Return True if this vector or mask is stored."""
        return self._blobs.has(name)

    def read(self, name: bytes, layout: Layout) -> Theta:
        """Return a vector (n,), read-only. Raises ``CodecError`` if its size does not match the layout."""
        data = self._blobs.read(name)
        if len(data) != 4 * layout.size:
            # A malformed order may name any blob as its base version.
            raise CodecError(
                f"vector {name.hex()}: {len(data)} bytes, expected float32 ({layout.size},)"
            )
        return np.frombuffer(data, "<f4").astype(np.float32, copy=False)

    def keep(self, theta: Theta) -> bytes:
        """Store theta (n,). Returns its name."""
        return self._blobs.write(theta.astype("<f4", copy=False).tobytes())

    def keep_version(self, theta: Theta, sha256: bytes, steps: Sequence[Step]) -> None:
        """Store a global model (n,), unless a few smaller ``steps`` lead to it from a stored model."""
        size = sum(step.blob.size for step in steps)
        if not 0 < len(steps) <= MAX_KEPT_STEPS or size > theta.nbytes:
            self.keep(theta)

    def read_mask(self, name: bytes) -> bytes:
        """Return the bytes that ``keep_mask`` has stored."""
        return self._blobs.read(name)

    def keep_mask(self, bitmap: bytes) -> bytes:
        """Store a bitmap, a coded patch or moments as a blob. Returns its SHA-256."""
        return self._blobs.write(bitmap)


class UnchangedVectors(FolderVectors):
    """The vectors in a folder that another process writes. Programs that only predict store nothing."""

    def keep_version(self, theta: Theta, sha256: bytes, steps: Sequence[Step]) -> None:
        """Do nothing."""
