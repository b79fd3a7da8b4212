"""What a device keeps, as the agent sees it: blobs, one record, and the vectors that never travel.

The agent's cores know these interfaces only. On a device all three are files below one folder; an
emulator may keep them elsewhere.
"""

from collections.abc import Set
from typing import Protocol, TypeVar

import numpy as np

from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.transfer import Manifest

T = TypeVar("T")


class WholeBlobs(Protocol):
    """Immutable blobs, as a job needs them."""

    def has(self, sha256: bytes) -> bool:
        """Whether the whole blob is here."""
        ...

    def read(self, sha256: bytes) -> bytes:
        """A blob, checked; one that fails its hash is no longer here."""
        ...

    def write(self, data: bytes) -> bytes:
        """Store a blob, durable on return; gives its SHA-256."""
        ...


class Blobs(WholeBlobs, Protocol):
    """Blobs and partly received ones, as ``BlobFolder``; that class says more of each method."""

    def read_span(self, sha256: bytes, offset: int, length: int) -> bytes:
        """``length`` bytes of a blob from ``offset``, not checked."""
        ...

    def open_part(self, owner: str, manifest: Manifest) -> set[int]:
        """Which chunks of a blob have arrived already."""
        ...

    def write_part(self, owner: str, manifest: Manifest, index: int, data: bytes) -> None:
        """Put a chunk into its place."""
        ...

    def finish_part(self, owner: str, manifest: Manifest) -> bool:
        """Make a complete part a blob. False, and no part, when its hash is wrong."""
        ...

    def collect(self, keep: Set[bytes], min_age_s: float) -> int:
        """Delete what is not in ``keep``; gives the bytes freed.

        ``keep`` has the names of vectors and masks too, so that whoever holds those elsewhere can
        delete them here as well.
        """
        ...


class DurableValue(Protocol[T]):
    """One value that survives everything, as ``Journal``."""

    def load(self) -> T | None:
        """What was last committed; None when nothing ever was."""
        ...

    def commit(self, value: T) -> None:
        """Replace the value, durable on return."""
        ...


class Vectors(Protocol):
    """Vectors and masks that never leave the device, by names of 32 bytes; they never change.

    These are the decoded global models (each named by its hash), the device's own model, what it still
    owes, its last mask, and what else ``Job`` (job.py) names. A coded patch is kept like a mask. Every
    method raises ``StorageError`` when the disk refuses, and for a name that is not here or no longer
    sound; the latter is not here any more after that.
    """

    def has(self, name: bytes) -> bool:
        """Whether a vector or mask is here."""
        ...

    def read(self, name: bytes, layout: Layout) -> Theta:
        """A vector (n,), not to be written to. Raises ``CodecError`` for one of another layout."""
        ...

    def keep(self, theta: Theta) -> bytes:
        """Keep theta (n,), which its owner will not change any more; gives its name."""
        ...

    def keep_version(self, theta: Theta, sha256: bytes) -> None:
        """Keep a global model (n,) under the SHA-256 of its float32 bytes, which the caller has checked."""
        ...

    def read_mask(self, name: bytes) -> bytes:
        """The bitmap of a mask, or a coded patch."""
        ...

    def keep_mask(self, bitmap: bytes) -> bytes:
        """Keep the bitmap of a mask, or a coded patch; gives its SHA-256."""
        ...


class FolderVectors:
    """``Vectors`` as blobs beside the others: raw little-endian float32, named by their SHA-256."""

    def __init__(self, blobs: WholeBlobs) -> None:
        self._blobs = blobs

    def has(self, name: bytes) -> bool:
        """Whether a vector or mask is here."""
        return self._blobs.has(name)

    def read(self, name: bytes, layout: Layout) -> Theta:
        """A vector (n,), not to be written to. Raises ``CodecError`` for one of another layout."""
        data = self._blobs.read(name)
        if len(data) != 4 * layout.size:
            # An order may name any blob that is here as the version it builds on.
            raise CodecError(
                f"vector {name.hex()}: {len(data)} bytes, expected float32 ({layout.size},)"
            )
        return np.frombuffer(data, "<f4").astype(np.float32, copy=False)

    def keep(self, theta: Theta) -> bytes:
        """Keep theta (n,); gives its name."""
        return self._blobs.write(theta.astype("<f4", copy=False).tobytes())

    def keep_version(self, theta: Theta, sha256: bytes) -> None:
        """Keep a global model (n,) under the SHA-256 of its float32 bytes, which the caller has checked."""
        self.keep(theta)

    def read_mask(self, name: bytes) -> bytes:
        """The bitmap of a mask."""
        return self._blobs.read(name)

    def keep_mask(self, bitmap: bytes) -> bytes:
        """Keep the bitmap of a mask; gives its SHA-256."""
        return self._blobs.write(bitmap)
