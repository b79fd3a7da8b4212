"""Blobs on their way to devices: the fleet's shared ones once for all, a private one to its device."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from sedge_cloud.store.cache import Cache
from sedge_protocol.errors import FrameError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.transfer import Manifest, Serving, describe

# Manifests kept: making one hashes the whole blob. That of 2.3 MB has 36 digests of 16 bytes: there is room
# for two thousand starts or patches.
CACHED_MANIFESTS_BYTES = 2 * 2**20
# Beside the digests: hash, sizes and the object itself.
_MANIFEST_BYTES = 400
# Device, or None for the fleet; transfer; index; data.
Chunk: TypeAlias = tuple[str | None, bytes, int, bytes]
# The manifest of a stored blob.
Describe: TypeAlias = Callable[[bytes], Manifest]
# Transfer, and the device where it goes to one alone.
Key: TypeAlias = tuple[bytes, str | None]


class Served(NamedTuple):
    """A blob that a device's order names; with ``askers`` it is sent once, to all of so many devices.

    With 0 it goes to this device alone.
    """

    manifest: Manifest
    askers: int


class Downloads:
    """Every blob being served."""

    def __init__(self, blobs: BlobFolder, gather_s: float) -> None:
        self._blobs = blobs
        self._gather_s = gather_s
        self._active: dict[Key, Serving] = {}
        # Those of which something is to be sent, the longest asked first; few are shared.
        self._shared: OrderedDict[Key, Serving] = OrderedDict()
        self._private: OrderedDict[Key, Serving] = OrderedDict()
        self._manifests: Cache[Manifest] = Cache(
            CACHED_MANIFESTS_BYTES, lambda manifest: len(manifest.digests) + _MANIFEST_BYTES
        )

    def manifest(self, blob: bytes) -> Manifest:
        """The manifest of a stored blob."""
        held = self._manifests.get(blob)
        return held or self._manifests.put(blob, describe(self._blobs.read(blob)))

    def request(
        self, device: str, transfer: bytes, missing: bytes, served: Iterable[Served], now: float
    ) -> int:
        """A device misses chunks of a blob, one of those that its order names; how many it adds.

        Raises ``FrameError`` for any other blob, and for a malformed bitmap.
        """
        one = next((one for one in served if one.manifest.transfer == transfer), None)
        if one is None:
            raise FrameError(f"GET of transfer {transfer.hex()}, which no order of it names")
        owner = None if one.askers else device
        key = transfer, owner
        serving = self._active.get(key) or Serving(
            one.manifest, self._gather_s if one.askers else 0
        )
        queued = serving.request(device, missing, max(1, one.askers), now)
        self._active[key] = serving
        if serving.timer() is not None:
            waiting = self._waiting(owner)
            waiting[key] = serving
            if queued:  # who asks for more while it is being served comes after all who wait
                waiting.move_to_end(key)
        return queued

    def poll(self, now: float, room: int) -> list[Chunk]:
        """Up to ``room`` chunks to send now; shared blobs and private ones have half of it each.

        Raises ``StorageError`` for one that the disk has damaged.
        """
        found: list[Chunk] = []
        kinds, sent = (self._shared, self._private), True
        while sent:
            sent = False
            for waiting in kinds:
                chunk = self._next(waiting, now) if len(found) < room else None
                if chunk is not None:
                    found.append(chunk)
                    sent = True
        return found

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        due = [serving.timer() for serving in self._shared.values()]
        if self._private:
            due.append(next(iter(self._private.values())).timer())
        return min((at for at in due if at is not None), default=None)

    def clear(self) -> None:
        """Forget every request; who still misses something asks again."""
        self._active.clear()
        self._shared.clear()
        self._private.clear()

    def _waiting(self, owner: str | None) -> OrderedDict[Key, Serving]:
        return self._shared if owner is None else self._private

    def _next(self, waiting: OrderedDict[Key, Serving], now: float) -> Chunk | None:
        """A chunk of the first of these blobs that has one to send now."""
        ready = ((key, one, one.poll(now, 1)) for key, one in waiting.items())
        found = next((turn for turn in ready if turn[2]), None)
        if found is None:
            return None
        key, serving, (index,) = found
        if serving.timer() is None:
            del waiting[key]
        (transfer, owner), manifest = key, serving.manifest
        offset, length = manifest.span(index)
        data = self._blobs.read_span(manifest.sha256, offset, length)
        if not manifest.matches(index, data):  # every device would drop it without a word
            name = manifest.sha256.hex()
            raise StorageError(f"read blob {name}: chunk {index} does not have its digest")
        return owner, transfer, index, data
