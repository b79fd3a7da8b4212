"""Reads and writes vectors as blobs: encoded models, deltas, patches, masks and strategies' arrays.

Decoded models and updates are cached within limits; correctness never depends on the caches. n is the
number of elements in a vector, k the number in a patch.
"""

import hashlib
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_cloud.store.cache import Cache, Memory
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import ClientModelRow, OrderRow
from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decode,
    encode,
)
from sedge_protocol.layout import Theta
from sedge_protocol.wire.arrays import Arrays
from sedge_protocol.wire.update import decode_arrays, decode_update


class DecodedModel(NamedTuple):
    """A decoded model (n,) and its largest magnitude."""

    theta: Theta
    largest: float


class StoredVectors:
    """The vectors of a store, with caches of decoded models and updates."""

    def __init__(self, store: Rows, memory: Memory | None = None) -> None:
        self.store = store
        self.memory = memory or Memory.of_machine()
        # Decoded models: the open round's, and older ones that client models build on.
        self._models: Cache[DecodedModel] = Cache(self.memory, lambda model: model.theta.nbytes)
        # Patches, and updates decoded on receipt, which are needed to close their round and to plan the
        # next. Closing and planning iterate over the fleet in order, several times. So vectors decoded for
        # that purpose, such as updates that other processes received, are added only while the cache has
        # room: in a full cache they would evict the entry that is needed next.
        self._vectors: Cache[SparseVector] = Cache(self.memory, vector_bytes)

    def write_model(
        self, theta: Theta, compression: Compression, values: ValueCoding = ValueCoding.FP32
    ) -> tuple[bytes, bytes, int]:
        """Store a model (n,); the stored model is exact if ``values`` is fp32.

        Returns the blob, the decoded vector's hash, and the blob's size.

        Raises ``Unencodable`` if an element is not finite in ``values``.
        """
        coded = encode(SparseVector(theta.size, None, theta), values, compression)
        blob = self.store.blobs.write(coded)
        decoded = theta if values is ValueCoding.FP32 else decode(coded, theta.size).dense()
        self._cache(blob, decoded)
        return blob, hash_of(decoded), len(coded)

    def theta(self, blob: bytes, size: int) -> Theta:
        """Decode a model (n,). The result is read-only."""
        return self.decoded_model(blob, size).theta

    def decoded_model(self, blob: bytes, size: int) -> DecodedModel:
        """Decode a model (n,) and find its largest magnitude. The model is read-only."""
        cached = self._models.get(blob)
        if cached is not None:
            return cached
        vector = decode(self.store.blobs.read(blob), size)
        return self._cache(blob, vector.values if vector.indices is None else vector.dense())

    def keep_delta(self, blob: bytes, context: bytes, delta: SparseVector) -> None:
        """Cache the decoded delta of an update that has been stored."""
        self._vectors.put(blob + context, delta)

    def delta(self, size: int, blob: bytes, context: bytes) -> SparseVector | None:
        """Decode the delta of a stored update; None if it has no payload."""
        cached = self._vectors.get(blob + context)
        if cached is not None:
            return cached
        _, payload = decode_update(self.store.update_blob(blob))
        if not payload:
            return None
        return self._vectors.fill(blob + context, self.decode(payload, size, context))

    def arrays(self, blob: bytes) -> dict[str, NDArray[np.float32]]:
        """Read the named arrays (m,) of a stored update."""
        return decode_arrays(self.store.update_blob(blob))

    def drop_past(self, rows: Iterable[ClientModelRow], keep: Collection[bytes]) -> None:
        """Evict vectors cached while planning for these devices, except models and patches in ``keep``."""
        for row in rows:
            self._vectors.drop(row.blob + row.context)
            if row.patch_hash not in keep:
                self._vectors.drop(row.patch_hash + row.patch_context)
            if row.model not in keep:
                self._models.drop(row.model)

    def patch(
        self, row: OrderRow | ClientModelRow, size: int, keep: bool = False
    ) -> SparseVector | None:
        """Decode an order's patch, if any; ``keep`` caches it until the round is closed."""
        name = row.patch_hash
        if not name:
            return None
        name += row.patch_context
        patch = self._vectors.get(name)
        if patch is None:
            coded = self.store.blobs.read(row.patch_blob) if row.patch_blob else row.patch
            patch = self.decode(coded, size, row.patch_context)
            if keep:
                self._vectors.put(name, patch)
        return patch

    def decode(self, coded: bytes | memoryview, size: int, context: bytes) -> SparseVector:
        """Decode a vector (n,), using the mask in the blob ``context`` unless ``context`` is empty."""
        mask = self.store.blobs.read(context) if context else None
        return decode(coded, size, mask)

    def write_vector(self, theta: Theta) -> bytes:
        """Store a vector (n,) as plain float32. Returns its blob, or b"" if all elements are 0."""
        return self.store.blobs.write(theta.astype("<f4").tobytes()) if theta.any() else b""

    def read_vector(self, blob: bytes) -> Theta:
        """Read a vector (n,) that was stored as plain float32."""
        return np.frombuffer(self.store.blobs.read(blob), "<f4").astype(np.float32)

    def write_arrays(self, arrays: Arrays) -> bytes:
        """Store a strategy's own arrays. Returns their blob, or b"" if there are none."""
        if not arrays:
            return b""
        packed = {
            name: (array.shape, np.ascontiguousarray(array, "<f4").tobytes())
            for name, array in arrays.items()
        }
        return self.store.blobs.write(msgspec.msgpack.encode(packed))

    def read_arrays(self, blob: bytes) -> dict[str, NDArray[np.float32]]:
        """Read a strategy's own arrays."""
        if not blob:
            return {}
        packed = msgspec.msgpack.decode(
            self.store.blobs.read(blob), type=dict[str, tuple[tuple[int, ...], bytes]]
        )
        return {
            name: np.frombuffer(data, "<f4").astype(np.float32).reshape(shape)
            for name, (shape, data) in packed.items()
        }

    def _cache(self, blob: bytes, theta: Theta) -> DecodedModel:
        view = theta.view()
        view.flags.writeable = False
        return self._models.put(blob, DecodedModel(view, magnitude(view)))


def hash_of(theta: Theta) -> bytes:
    """Return a vector's hash: SHA-256 of its n little-endian float32 values."""
    return hashlib.sha256(theta.astype("<f4", copy=False).tobytes()).digest()


def magnitude(values: NDArray[np.float32]) -> float:
    """Return the largest magnitude among ``values``, which must be finite."""
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def vector_bytes(vector: SparseVector) -> int:
    """Return the memory that a sparse vector takes, in bytes."""
    return vector.values.nbytes + (0 if vector.indices is None else vector.indices.nbytes)
