"""The agent's storage interfaces: blobs, one durable value, and vectors that never leave the device.

The agent's core knows only these interfaces. On a device all three are files in one folder; an emulator
may keep them elsewhere.
"""

from collections.abc import Sequence, Set
from typing import Protocol, TypeVar

import numpy as np

from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.work import Step

# The most steps that may replace a stored global model; each has to be decoded in every round.
MAX_KEPT_STEPS = 8

T = TypeVar("T")


class ReadableBlobs(Protocol):
    """Immutable blobs that somebody else writes."""

    def has(self, sha256: bytes) -> bool:
        """Whether the whole blob is here."""
        ...

    def read(self, sha256: bytes) -> bytes:
        """A blob, its hash checked; one that fails the check is removed."""
        ...


class WholeBlobs(ReadableBlobs, Protocol):
    """Immutable blobs, limited to the operations that a job needs."""

    def write(self, data: bytes) -> bytes:
        """Store a blob, durable once settled. Returns its SHA-256."""
        ...


class Blobs(WholeBlobs, Protocol):
    """Whole blobs and partly received ones. ``BlobFolder`` implements and documents each method."""

    def settle(self) -> None:
        """Make every blob durable. Call it before each commit, which may name any of them."""
        ...

    def read_span(self, sha256: bytes, offset: int, length: int) -> bytes:
        """``length`` bytes of a blob from ``offset``, without a hash check."""
        ...

    def open_part(self, owner: str, manifest: Manifest) -> set[int]:
        """The chunks of a blob that have arrived already."""
        ...

    def write_part(self, owner: str, manifest: Manifest, index: int, data: bytes) -> None:
        """Store a chunk at its offset."""
        ...

    def finish_part(self, owner: str, manifest: Manifest) -> bool:
        """Turn a complete part into a blob. False, and the part is deleted, when its hash is wrong."""
        ...

    def collect(self, keep: Set[bytes], min_age_s: float) -> int:
        """Delete everything that is not in ``keep``. Returns the bytes freed.

        ``keep`` includes the names of vectors and masks, so that an implementation that stores these
        elsewhere can delete them in the same call.
        """
        ...


class DurableValue(Protocol[T]):
    """One value that survives crashes and power loss; ``Journal`` implements it."""

    def load(self) -> T | None:
        """The last committed value; None when there is none."""
        ...

    def commit(self, value: T) -> None:
        """Replace the value, durable on return."""
        ...


class Vectors(Protocol):
    """Vectors and masks that never leave the device, immutable, named by 32 bytes.

    These are the decoded global models (each named by its hash) and what ``Job`` (job.py) names: the
    device's own model, its residual, its last mask and so on. A coded patch is stored like a mask. Every
    method raises ``StorageError`` when the disk refuses, and for a name that is missing or damaged; a
    damaged entry counts as missing from then on.
    """

    def has(self, name: bytes) -> bool:
        """Whether a vector or mask is here."""
        ...

    def read(self, name: bytes, layout: Layout) -> Theta:
        """A vector (n,), read-only. Raises ``CodecError`` when its size is not the layout's."""
        ...

    def keep(self, theta: Theta) -> bytes:
        """Keep theta (n,), which the caller must not change any more. Returns its name."""
        ...

    def keep_version(self, theta: Theta, sha256: bytes, steps: Sequence[Step]) -> None:
        """Keep a global model (n,) under the SHA-256 of its float32 bytes, which the caller has checked.

        If ``steps`` lead to it from a model that is here, storing these may be enough.
        """
        ...

    def read_mask(self, name: bytes) -> bytes:
        """The bitmap of a mask, or a coded patch."""
        ...

    def keep_mask(self, bitmap: bytes) -> bytes:
        """Keep the bitmap of a mask, or a coded patch. Returns its SHA-256."""
        ...


class FolderVectors:
    """``Vectors`` as blobs: raw little-endian float32, named by their SHA-256."""

    def __init__(self, blobs: WholeBlobs) -> None:
        self._blobs = blobs

    def has(self, name: bytes) -> bool:
        """Whether a vector or mask is here."""
        return self._blobs.has(name)

    def read(self, name: bytes, layout: Layout) -> Theta:
        """A vector (n,), read-only. Raises ``CodecError`` when its size is not the layout's."""
        data = self._blobs.read(name)
        if len(data) != 4 * layout.size:
            # A malformed order may name any blob as the version that it builds on.
            raise CodecError(
                f"vector {name.hex()}: {len(data)} bytes, expected float32 ({layout.size},)"
            )
        return np.frombuffer(data, "<f4").astype(np.float32, copy=False)

    def keep(self, theta: Theta) -> bytes:
        """Keep theta (n,). Returns its name."""
        return self._blobs.write(theta.astype("<f4", copy=False).tobytes())

    def keep_version(self, theta: Theta, sha256: bytes, steps: Sequence[Step]) -> None:
        """Keep a global model (n,), unless a few smaller ``steps`` lead to it from a model that is kept."""
        size = sum(step.blob.size for step in steps)
        if not 0 < len(steps) <= MAX_KEPT_STEPS or size > theta.nbytes:
            self.keep(theta)

    def read_mask(self, name: bytes) -> bytes:
        """The bitmap of a mask."""
        return self._blobs.read(name)

    def keep_mask(self, bitmap: bytes) -> bytes:
        """Keep the bitmap of a mask. Returns its SHA-256."""
        return self._blobs.write(bitmap)


class UnchangedVectors(FolderVectors):
    """The vectors of a folder that another process writes: a program that predicts keeps nothing."""

    def keep_version(self, theta: Theta, sha256: bytes, steps: Sequence[Step]) -> None:
        """Keep nothing."""
