"""Blobs on their way to devices: the fleet's shared ones once for all, a private one to its device."""

from dataclasses import dataclass, field

from sedge_cloud.store import OrderRow
from sedge_protocol.blobs import BlobFolder
from sedge_protocol.errors import FrameError
from sedge_protocol.messages import MAX_INLINE_BYTES
from sedge_protocol.transfer import Manifest, Serving, describe

# Manifests of this many globals are kept; making one hashes the whole blob.
CACHED_MANIFESTS = 4


@dataclass
class Download:
    """A blob being served; ``device`` is set when only one may have it, and ``data`` with it."""

    serving: Serving
    device: str | None = None
    data: bytes = field(default=b"", repr=False)


class Downloads:
    """Every blob being served."""

    def __init__(self, blobs: BlobFolder, gather_s: float) -> None:
        self._blobs = blobs
        self._gather_s = gather_s
        self._active: dict[bytes, Download] = {}
        self._manifests: dict[bytes, Manifest] = {}

    def manifest(self, blob: bytes) -> Manifest:
        """The manifest of a stored blob."""
        if blob not in self._manifests:
            self._manifests[blob] = describe(self._blobs.read(blob))
            if len(self._manifests) > CACHED_MANIFESTS:
                del self._manifests[next(iter(self._manifests))]
        return self._manifests[blob]

    def request(
        self,
        transfer: bytes,
        missing: bytes,
        shared: tuple[Manifest, ...],
        order: OrderRow,
        expected: int,
        now: float,
    ) -> None:
        """A device misses chunks of a blob that its order names: one of ``shared``, or its patch.

        ``expected`` is how many devices may ask for a shared one.

        Raises ``FrameError`` for any other blob, and for a malformed bitmap.
        """
        found = self._active.get(transfer) or self._find(transfer, shared, order)
        if found is None:
            raise FrameError(f"GET of transfer {transfer.hex()}, which no order of it names")
        if found.device not in (None, order.device):
            raise FrameError(f"GET of transfer {transfer.hex()}, which is another device's")
        found.serving.request(order.device, missing, expected, now)
        self._active[transfer] = found

    def poll(self, now: float, room: int) -> list[tuple[str | None, bytes, int, bytes]]:
        """Up to ``room`` chunks to send now: (device or None for the fleet, transfer, index, data)."""
        found: list[tuple[str | None, bytes, int, bytes]] = []
        for transfer, download in self._active.items():
            manifest = download.serving.manifest
            for index in download.serving.poll(now, room - len(found)):
                offset, length = manifest.span(index)
                if download.device is None:
                    data = self._blobs.read_span(manifest.sha256, offset, length)
                else:
                    data = download.data[offset : offset + length]
                found.append((download.device, transfer, index, data))
        return found

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        due = [download.serving.timer() for download in self._active.values()]
        return min((at for at in due if at is not None), default=None)

    def clear(self) -> None:
        """Forget every request; who still misses something asks again."""
        self._active.clear()

    def _find(
        self, transfer: bytes, shared: tuple[Manifest, ...], order: OrderRow
    ) -> Download | None:
        for manifest in shared:
            if manifest.transfer == transfer:
                return Download(Serving(manifest, self._gather_s))
        if len(order.patch) > MAX_INLINE_BYTES:
            manifest = describe(order.patch)
            if manifest.transfer == transfer:
                return Download(Serving(manifest, 0.0), order.device, order.patch)
        return None
