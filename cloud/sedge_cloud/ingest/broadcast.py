"""Blobs for the whole fleet, where several processes serve it: one sends them, for all the others, too.

The process that leads waits a moment for what others' devices lack, and sends the union once. Every other
one passes on what its devices lack. A request that is lost on its way is repeated by its devices.
"""

from collections.abc import Iterator

from sedge_cloud.hints import Lacking
from sedge_cloud.ingest.downloads import Downloads
from sedge_cloud.ingest.open_orders import OpenOrders
from sedge_cloud.ingest.traffic import Traffic
from sedge_cloud.runs.loaded import Runs
from sedge_cloud.runs.manifests import Manifests
from sedge_cloud.runs.orders import receivers_of
from sedge_protocol.wire.frame import HEADER
from sedge_protocol.wire.transfer import to_bitmap


class Broadcast:
    """Whether this process sends blobs for all itself, and for how many ``others``; else it passes on."""

    def __init__(
        self,
        downloads: Downloads,
        manifests: Manifests,
        runs: Runs,
        opened: OpenOrders,
        traffic: Traffic,
    ) -> None:
        self.is_here, self.others = True, 0
        self._downloads = downloads
        self._manifests = manifests
        self._runs = runs
        self._open = opened
        self._traffic = traffic

    def pass_on(self, now: float) -> Iterator[Lacking]:
        """The chunks of broadcast blobs that devices here lack, for the process that sends them."""
        for manifest, chunks in () if self.is_here else self._downloads.take_shared(now):
            for index in chunks:
                size = manifest.span(index)[1] + HEADER.size
                self._traffic.delivered(manifest.transfer, index, size)
            missing = to_bitmap(chunks, manifest.count)
            yield Lacking("", manifest.sha256, manifest.chunk_bytes, missing)

    def want(self, lacking: Lacking, now: float) -> None:
        """Send what another process's devices lack, if an open round sends it to all.

        Raises ``StorageError``, and ``FrameError`` for a malformed bitmap.
        """
        for current in self._open.rounds():
            run = self._runs.get(current.row.run)
            count = None if run is None else receivers_of(run, current, lacking.sha256)
            if count is None:
                continue
            manifest = self._manifests.of(lacking.sha256, lacking.chunk_bytes)
            expected = min(count, len(current.present - current.excused)) + self.others
            self._downloads.want(manifest, lacking.missing, lacking.asker, expected, now)
            return
