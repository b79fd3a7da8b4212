"""Vectors and what names them: coded models, deltas, patches, masks and a strategy's arrays, as blobs.

Models, and updates as they were decoded at their receipt, are held in memory within limits; nothing
depends on what is held. n = elements of a vector.
"""

import hashlib
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_cloud.store.cache import Cache
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import ClientModelRow, OrderRow
from sedge_cloud.strategy import Arrays
from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decode,
    encode,
    mask_bitmap,
)
from sedge_protocol.codec.patch_levels import Levels, decode_levels, part
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import MAX_INLINE_BYTES
from sedge_protocol.wire.update import decode_update

# Decoded models in memory: the open round's, and older ones that devices' histories build on. A model
# of 582,026 parameters fits 115 times.
CACHED_GLOBALS_BYTES = 256 * 2**20
# Updates as they were decoded at their receipt, for the closing of their round and the next plan. Only a
# receipt adds to them: both go through the fleet in order, and would always find the next one gone.
CACHED_UPDATES_BYTES = 256 * 2**20


class Global(NamedTuple):
    """A decoded model (n,) and its largest magnitude."""

    theta: Theta
    largest: float


class Vectors:
    """The vectors of a store, with caches of decoded models and updates."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._globals: Cache[Global] = Cache(CACHED_GLOBALS_BYTES, lambda held: held.theta.nbytes)
        self._vectors: Cache[SparseVector] = Cache(CACHED_UPDATES_BYTES, vector_bytes)

    def write_model(
        self, theta: Theta, compression: Compression, values: ValueCoding = ValueCoding.FP32
    ) -> tuple[bytes, bytes, int]:
        """Store a model (n,), exact with fp32: its blob, the hash of the decoded vector, the blob's bytes.

        Raises ``LocalError`` for an element that is not finite in ``values``.
        """
        coded = encode(SparseVector(theta.size, None, theta), values, compression)
        blob = self.store.blobs.write(coded)
        held = theta if values is ValueCoding.FP32 else decode(coded, theta.size).dense()
        self._remember(blob, held)
        return blob, hash_of(held), len(coded)

    def theta(self, blob: bytes, size: int) -> Theta:
        """A model (n,), read-only."""
        return self.held(blob, size).theta

    def held(self, blob: bytes, size: int) -> Global:
        """A model (n,), read-only, and its largest magnitude."""
        held = self._globals.get(blob)
        if held is None:
            model = decode(self.store.blobs.read(blob), size)
            theta = model.values if model.indices is None else model.dense()
            held = self._remember(blob, theta)
        return held

    def keep_delta(self, blob: bytes, context: bytes, delta: SparseVector) -> None:
        """Hold the decoded delta of a stored update."""
        self._vectors.put(blob + context, delta)

    def delta(self, size: int, blob: bytes, context: bytes) -> SparseVector | None:
        """The decoded delta of a stored update; None for one without a payload."""
        held = self._vectors.get(blob + context)
        if held is not None:
            return held
        _, payload = decode_update(self.store.update_blob(blob))
        return self.decode(payload, size, context) if payload else None

    def patch(
        self, row: OrderRow | ClientModelRow, size: int, keep: bool = False
    ) -> SparseVector | None:
        """The decoded patch of an order, if there is one; ``keep`` it for the closing of its round."""
        name = row.patch_hash
        if not name:
            return None
        held = self._vectors.get(name + row.patch_context)
        if held is None:
            coded = self.store.blobs.read(row.patch_blob) if row.patch_blob else row.patch
            held = self.decode(coded, size, row.patch_context)
            if keep:
                self._vectors.put(name + row.patch_context, held)
        return held

    def levels(self, order: OrderRow, size: int) -> Levels | None:
        """The levels (k,) of an order's patch, none without one; None where the device has no choice."""
        choice = order.read_work().choice
        if choice is None:
            return None
        patch = self.patch(order, size, keep=True)
        return decode_levels(choice.levels, 0 if patch is None else patch.count)

    def started(
        self, order: OrderRow, size: int, level: int | None, keep: bool = False
    ) -> SparseVector | None:
        """The part of an order's patch that the device started with, by the level that it reported."""
        patch = self.patch(order, size, keep)
        if patch is None or level is None:
            return patch
        levels = self.levels(order, size)
        return patch if levels is None else part(patch, levels, level)

    def write_patch(self, patch: SparseVector | None) -> tuple[bytes, bytes]:
        """A patch as a row has it: exact, inline or as the blob of this name; both empty for none."""
        if patch is None:
            return b"", b""
        coded = encode(patch, ValueCoding.FP32)
        inline = len(coded) <= MAX_INLINE_BYTES
        return (coded, b"") if inline else (b"", self.store.blobs.write(coded))

    def decode(self, coded: bytes | memoryview, size: int, context: bytes) -> SparseVector:
        """A coded vector (n,), decoded with the mask in the blob ``context``, if that is not empty."""
        mask = self.store.blobs.read(context) if context else None
        return decode(coded, size, mask)

    def write_mask(self, delta: SparseVector) -> bytes:
        """Store the mask of a delta; the blob's hash, or empty where all or no elements were sent."""
        if not 0 < delta.count < delta.size:
            return b""
        return self.store.blobs.write(mask_bitmap(delta))

    def write_vector(self, theta: Theta) -> bytes:
        """Store a vector (n,) as it is; the blob's hash, or empty bytes for one of zeros."""
        return self.store.blobs.write(theta.astype("<f4").tobytes()) if theta.any() else b""

    def read_vector(self, blob: bytes) -> Theta:
        """A vector (n,) that was stored as it is."""
        return np.frombuffer(self.store.blobs.read(blob), "<f4").astype(np.float32)

    def write_arrays(self, arrays: Arrays) -> bytes:
        """Store a strategy's own arrays; the blob's hash, or empty bytes for none."""
        if not arrays:
            return b""
        packed = {
            name: (array.shape, np.ascontiguousarray(array, "<f4").tobytes())
            for name, array in arrays.items()
        }
        return self.store.blobs.write(msgspec.msgpack.encode(packed))

    def read_arrays(self, blob: bytes) -> dict[str, NDArray[np.float32]]:
        """A strategy's own arrays."""
        if not blob:
            return {}
        packed = msgspec.msgpack.decode(
            self.store.blobs.read(blob), type=dict[str, tuple[tuple[int, ...], bytes]]
        )
        return {
            name: np.frombuffer(data, "<f4").astype(np.float32).reshape(shape)
            for name, (shape, data) in packed.items()
        }

    def _remember(self, blob: bytes, theta: Theta) -> Global:
        view = theta.view()
        view.flags.writeable = False
        return self._globals.put(blob, Global(view, magnitude(view)))


def hash_of(theta: Theta) -> bytes:
    """The name of a vector (n,): SHA-256 of its float32, little endian."""
    return hashlib.sha256(theta.astype("<f4", copy=False).tobytes()).digest()


def magnitude(values: NDArray[np.float32]) -> float:
    """The largest magnitude of finite values."""
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def vector_bytes(vector: SparseVector) -> int:
    """The memory that a sparse vector takes."""
    return vector.values.nbytes + (0 if vector.indices is None else vector.indices.nbytes)
