"""Caches the manifests of stored blobs, as creating one hashes the whole blob."""

from sedge_cloud.store.cache import Cache, Memory
from sedge_cloud.store.contract import Blobs
from sedge_protocol.wire.transfer import DEFAULT_CHUNK_BYTES, Manifest, describe

# The size of a cached manifest without its digests: a hash, sizes, and the object itself.
_MANIFEST_BYTES = 400


class Manifests:
    """The manifests of a store's blobs, for chunks of any size."""

    def __init__(self, blobs: Blobs, memory: Memory) -> None:
        self._blobs = blobs
        self._cached: Cache[Manifest] = Cache(
            memory, lambda manifest: len(manifest.digests) + _MANIFEST_BYTES
        )

    def of(self, blob: bytes, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> Manifest:
        """Return the manifest of a blob. Raises ``StorageError``."""
        key = (
            blob if chunk_bytes == DEFAULT_CHUNK_BYTES else blob + chunk_bytes.to_bytes(4, "little")
        )
        cached = self._cached.get(key)
        return cached or self._cached.put(key, describe(self._blobs.read(blob), chunk_bytes))
