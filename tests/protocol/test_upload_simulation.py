"""Both ends of an upload joined by a fake link.

Nothing here is mocked but the wire; the rules of the two callers (outbox.py and uploads.py) are played in a
few lines each.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.protocol.fake_link import BLOB, CLEAN, CUTS, FRAME, HOSTILE, End, Faults, World

from sedge_protocol.wire.transfer import CREDIT, Intake, Manifest, Upload, describe


class Uploading(End[Upload]):
    """A device that offers a blob, and a coordinator that takes it in."""

    def __init__(self, seed: int, faults: Faults, blob: bytes = BLOB, chunk: int = 4096) -> None:
        super().__init__(World(random.Random(seed), faults))
        self.blob = blob
        self.rng = np.random.default_rng(seed)
        self.transfer = Upload(describe(blob, chunk), self.rng)
        self.part = bytearray(len(blob))
        self.intake: Intake | None = None
        self.stored = False
        self.delivered = False
        self.chunks = self.offers = self.bytes_sent = 0
        self.connect()

    def run(self) -> None:
        """Until the device has its receipt."""
        while not self.delivered:
            assert self.world.now < 5000, "the upload has not ended"
            self.poll()
            timers = [self.transfer.timer(), self.intake.timer() if self.intake else None]
            self.world.advance(min((t for t in timers if t is not None), default=None))
        assert bytes(self.part) == self.blob

    def poll(self) -> None:
        if self.transfer.wants_smaller_chunks:
            smaller = self.transfer.manifest.chunk_bytes // 2
            self.transfer = Upload(describe(self.blob, smaller), self.rng)
            if self.connected:
                self.transfer.connected(self.world.now)
        manifest = self.transfer.manifest
        for index in self.transfer.poll(self.world.now):
            if index is None:
                self.send_offer(manifest)
            else:
                offset, length = manifest.span(index)
                data = self.blob[offset : offset + length]
                self.chunks += 1
                self.send_up(length, lambda i=index, d=data: self.take(manifest, i, d))  # type: ignore[misc]
        if self.intake is not None and self.intake.poll(self.world.now):
            self.report(0)

    def send_offer(self, manifest: Manifest) -> None:
        self.offers += 1
        number = self.transfer.number
        data = self.blob if self.transfer.inline else b""
        size = len(data) + len(manifest.digests)
        self.send_up(size, lambda: self.take_offer(manifest, number, data))

    def send_up(self, size: int, action: Callable[[], None]) -> None:
        self.bytes_sent += size
        if size + FRAME > self.world.faults.longest:
            self.cut()
            return
        self.up.send(size + FRAME, action)

    def take_offer(self, manifest: Manifest, number: int, data: bytes) -> None:
        if not self.stored:
            if self.world.hit(self.world.faults.restart):
                self.restart()
            if self.intake is None or self.intake.manifest != manifest:
                self.intake = Intake(manifest, self.held(manifest))
            if data:
                self.take(manifest, 0, data)
                if self.stored:
                    return
        self.report(number)

    def take(self, manifest: Manifest, index: int, data: bytes) -> None:
        if self.intake is None or self.intake.manifest != manifest:
            return
        if self.intake.chunk(index, data, self.world.now):
            offset, length = manifest.span(index)
            self.part[offset : offset + length] = data
        if self.intake.complete:
            self.stored = True
            self.intake = None
            self.report(0)

    def restart(self) -> None:
        """The coordinator starts again; a chunk that was not flushed may be gone."""
        self.intake = None
        if self.world.rng.random() < 0.5:
            start = self.world.rng.randrange(len(self.part))
            self.part[start : start + 5000] = bytes(len(self.part[start : start + 5000]))

    def held(self, manifest: Manifest) -> set[int]:
        found: set[int] = set()
        for index in range(manifest.count):
            offset, length = manifest.span(index)
            if manifest.matches(index, bytes(self.part[offset : offset + length])):
                found.add(index)
        return found

    def report(self, number: int) -> None:
        if self.stored:
            self.down.send(FRAME, self.receipt)
        elif self.intake is not None:
            bitmap, upload = self.intake.bitmap(), self.transfer
            self.down.send(FRAME, lambda: self.have(upload, number, bitmap))

    def have(self, upload: Upload, number: int, bitmap: bytes) -> None:
        if self.connected and upload is self.transfer:
            upload.receive(number, bitmap, CREDIT, self.world.now)

    def receipt(self) -> None:
        self.delivered = self.delivered or self.connected


@pytest.mark.parametrize("block", range(2))
def test_an_upload_always_arrives(block: int) -> None:
    cuts = 0
    for seed in range(150 * block, 150 * (block + 1)):
        uploading = Uploading(seed, HOSTILE)
        uploading.run()
        cuts += uploading.cuts
    assert cuts > 150


def test_a_cut_costs_no_more_than_two_windows() -> None:
    """Invariant I10; in fact one window, for nothing but what was on its way is sent again."""
    cuts = 0
    for seed in range(100):
        uploading = Uploading(seed, CUTS)
        uploading.run()
        cuts += uploading.cuts
        assert uploading.chunks - uploading.transfer.manifest.count <= CREDIT * uploading.cuts
    assert cuts > 100


@pytest.mark.parametrize("latency_s", [0.0, 0.9])
@pytest.mark.parametrize("bytes_per_s", [1e3, 2e4, 1e9])
@pytest.mark.parametrize("chunk", [4096, 65536])
def test_on_a_clean_link_nothing_is_sent_twice(
    latency_s: float, bytes_per_s: float, chunk: int
) -> None:
    faults = replace(CLEAN, latency_s=latency_s, bytes_per_s=bytes_per_s)
    uploading = Uploading(1, faults, chunk=chunk)
    uploading.run()
    assert uploading.chunks == uploading.transfer.manifest.count
    if bytes_per_s == 1e9:
        assert uploading.offers == 1


@pytest.mark.parametrize("longest", [5_000, 20_000])
@pytest.mark.parametrize("size", [len(BLOB), 20_000])
def test_chunks_shrink_until_they_fit(longest: int, size: int) -> None:
    uploading = Uploading(1, replace(CLEAN, longest=longest), BLOB[:size], chunk=65536)
    uploading.run()
    chunk_bytes = uploading.transfer.manifest.chunk_bytes
    assert min(size, chunk_bytes) + FRAME <= longest
    assert chunk_bytes == 65536 or min(size, 2 * chunk_bytes) + FRAME > longest
    assert uploading.cuts <= 20
