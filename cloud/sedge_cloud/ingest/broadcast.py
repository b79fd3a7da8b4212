"""Sends blobs to the whole fleet if several processes serve it: one process sends them on behalf of all.

The leading process waits a moment for requests from the other processes' devices, and sends all requested
chunks once. Every other process passes its devices' requests on to it. If a request is lost, the device
repeats it.
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
    """Sends blobs for this process and ``others``, or passes requests on to the process that does."""

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
        """Yield requests to the sending process, for broadcast chunks that this process's devices lack."""
        for manifest, chunks in () if self.is_here else self._downloads.take_shared(now):
            for index in chunks:
                size = manifest.span(index)[1] + HEADER.size
                self._traffic.delivered(manifest.transfer, index, size)
            missing = to_bitmap(chunks, manifest.count)
            yield Lacking(manifest.sha256, manifest.chunk_bytes, missing)

    def want(self, asker: str, lacking: Lacking, now: float) -> None:
        """Queue chunks that another process's devices lack, if an open round broadcasts their blob.

        Raises ``StorageError``, and ``FrameError`` for a malformed bitmap.
        """
        for current in self._open.rounds():
            run = self._runs.get(current.row.run)
            count = None if run is None else receivers_of(run, current, lacking.sha256)
            if count is None:
                continue
            manifest = self._manifests.of(lacking.sha256, lacking.chunk_bytes)
            expected = min(count, len(current.present - current.excused)) + self.others
            self._downloads.want(manifest, lacking.missing, asker, expected, now)
            return
