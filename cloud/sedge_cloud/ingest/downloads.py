"""Sends blobs to devices: a shared blob once for the whole fleet, any other blob to a single device."""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import TypeAlias

from sedge_cloud.runs.named_blobs import NamedBlob
from sedge_cloud.store.contract import Blobs
from sedge_protocol.errors import FrameError, StorageError
from sedge_protocol.wire.serving import Serving
from sedge_protocol.wire.topics import shard_of
from sedge_protocol.wire.transfer import Manifest

# (device, or None for the fleet; transfer; index; data)
Chunk: TypeAlias = tuple[str | None, bytes, int, bytes]
# (transfer, device if the blob goes to one device only)
Key: TypeAlias = tuple[bytes, str | None]


class Downloads:
    """Tracks every blob that is being sent."""

    def __init__(self, blobs: Blobs, gather_s: float) -> None:
        self._blobs = blobs
        self._gather_s = gather_s
        self._active: dict[Key, Serving] = {}
        # Blobs that have chunks to send, oldest request first. Only a few blobs are shared.
        self._shared: OrderedDict[Key, Serving] = OrderedDict()
        self._private: OrderedDict[Key, Serving] = OrderedDict()

    def request(
        self, device: str, transfer: bytes, missing: bytes, served: Iterable[NamedBlob], now: float,
        others: int = 0,
    ) -> tuple[int, NamedBlob]:  # fmt: skip
        """Queue the missing chunks of a blob that a device's order refers to.

        Returns how many chunks were added, and the blob.

        A shared blob is held back for requests from other processes, too; ``others`` is their number.
        Raises ``FrameError`` for a blob that is not in the order, and for a malformed bitmap.
        """
        one = next((one for one in served if one.manifest.transfer == transfer), None)
        if one is None:
            raise FrameError(f"GET of transfer {transfer.hex()}, which its order does not name")
        owner = None if one.receivers else device
        key = transfer, owner
        serving = self._active.get(key) or Serving(
            one.manifest, self._gather_s if one.receivers else 0
        )
        queued = serving.request(
            device, missing, max(1, one.receivers) + others * (owner is None), now
        )
        self._active[key] = serving
        if serving.timer() is not None:
            waiting = self._waiting(owner)
            waiting[key] = serving
            if queued:  # a device that requests more goes to the end of the queue
                waiting.move_to_end(key)
        return queued, one

    def want(
        self, manifest: Manifest, missing: bytes, asker: str, expected: int, now: float
    ) -> None:
        """Queue chunks of a broadcast blob that devices of another process lack.

        The blob is held back until ``expected`` requests, from this process's devices and from other
        processes, have arrived or a moment has passed. Raises ``FrameError`` for a malformed bitmap.
        """
        key = manifest.transfer, None
        serving = self._active.setdefault(key, Serving(manifest, self._gather_s))
        serving.request(asker, missing, expected, now)
        if serving.timer() is not None:
            self._shared[key] = serving

    def take_shared(self, now: float) -> list[tuple[Manifest, list[int]]]:
        """Return the chunks of broadcast blobs that are due, for another process to send."""
        taken: list[tuple[Manifest, list[int]]] = []
        for key, serving in list(self._shared.items()):
            chunks = serving.poll(now, serving.manifest.count)
            if chunks:
                taken.append((serving.manifest, chunks))
            if serving.timer() is None:
                del self._shared[key]
        return taken

    def poll(self, now: float, room: int) -> list[Chunk]:
        """Return up to ``room`` chunks to send now, taken from shared and private blobs in turn.

        Raises ``StorageError`` for a blob that is damaged on disk.
        """
        chunks: list[Chunk] = []
        kinds, sent = (self._shared, self._private), True
        while sent:
            sent = False
            for waiting in kinds:
                chunk = self._next(waiting, now) if len(chunks) < room else None
                if chunk is not None:
                    chunks.append(chunk)
                    sent = True
        return chunks

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        due = [serving.timer() for serving in self._shared.values()]
        if self._private:
            due.append(next(iter(self._private.values())).timer())
        return min((at for at in due if at is not None), default=None)

    def clear(self) -> None:
        """Drop all requests; a device that still lacks chunks asks again."""
        self._active.clear()
        self._shared.clear()
        self._private.clear()

    def drop(self, shards: Collection[str]) -> None:
        """Drop the transfers to single devices in these shards."""
        for key in [key for key in self._active if key[1] and shard_of(key[1]) in shards]:
            del self._active[key]
            self._private.pop(key, None)

    def _waiting(self, owner: str | None) -> OrderedDict[Key, Serving]:
        return self._shared if owner is None else self._private

    def _next(self, waiting: OrderedDict[Key, Serving], now: float) -> Chunk | None:
        """Return the next chunk that is due, from the first blob that has one; None if none is due."""
        polled = ((key, one, one.poll(now, 1)) for key, one in waiting.items())
        ready = next((turn for turn in polled if turn[2]), None)
        if ready is None:
            return None
        key, serving, (index,) = ready
        if serving.timer() is None:
            del waiting[key]
        (transfer, owner), manifest = key, serving.manifest
        offset, length = manifest.span(index)
        data = self._blobs.read_span(manifest.sha256, offset, length)
        if not manifest.matches(index, data):  # every device would silently drop a damaged chunk
            name = manifest.sha256.hex()
            raise StorageError(f"read blob {name}: chunk {index} does not match its digest")
        return owner, transfer, index, data
