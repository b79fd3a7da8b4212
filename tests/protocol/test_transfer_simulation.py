"""Both ends of a transfer joined by a fake link that drops, doubles and cuts, under a virtual clock.

Nothing here is mocked but the wire. The rules of the two callers (inbox.py and outbox.py, downloads.py
and fetching.py) are played in a few lines each.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sedge_protocol.transfer import (
    CREDIT,
    MAX_INLINE_BYTES,
    MIN_CHUNK_BYTES,
    Fetch,
    Intake,
    Manifest,
    Serving,
    Upload,
    describe,
    to_bitmap,
)

FRAME = 100  # bytes of a frame beside what it carries
BLOB = np.random.default_rng(1).bytes(16 * MIN_CHUNK_BYTES - 100)


@dataclass(frozen=True)
class Faults:
    """How bad the link is. ``longest`` is the largest frame that it carries; a larger one cuts it."""

    latency_s: float = 0.05
    bytes_per_s: float = 1e6
    drop: float = 0.0
    double: float = 0.0
    cut_every_s: float = 0.0
    longest: int = 10**9
    restart: float = 0.0
    until_s: float = 300.0  # then the link is good: every run must end


CLEAN = Faults()
HOSTILE = Faults(bytes_per_s=1e5, drop=0.15, double=0.15, cut_every_s=2.0, restart=0.02)
CUTS = Faults(bytes_per_s=40_000, cut_every_s=1.0)
SLOW = Faults(latency_s=0.3, bytes_per_s=2_000)


@dataclass
class World:
    """The clock, what is due, and chance."""

    rng: random.Random
    faults: Faults
    now: float = 0.0
    due: list[tuple[float, int, Callable[[], None]]] = field(
        default_factory=list[tuple[float, int, Callable[[], None]]]
    )
    count: int = 0

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.due, (self.now + delay_s, self.count, action))

    def hit(self, chance: float) -> bool:
        return chance > 0 and self.now < self.faults.until_s and self.rng.random() < chance

    def advance(self, timer: float | None) -> None:
        """Let time pass to the next event or to ``timer``, whichever is first."""
        at = self.due[0][0] if self.due else float("inf")
        if timer is not None and timer < at:
            self.now = max(self.now, timer)
            return
        assert self.due, "nothing will ever happen again"
        at, _, action = heapq.heappop(self.due)
        self.now = max(self.now, at)
        action()


class Wire:
    """One direction of a link: in order, and lost with the connection; a double may come any time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._epoch = 0
        self._free_at = 0.0

    def cut(self) -> None:
        self._epoch += 1
        self._free_at = self._world.now

    def send(self, size: int, action: Callable[[], None]) -> None:
        world, epoch = self._world, self._epoch
        self._free_at = max(self._free_at, world.now) + size / world.faults.bytes_per_s
        if world.hit(world.faults.drop):
            return
        arrival_s = self._free_at - world.now + world.faults.latency_s
        world.later(arrival_s, lambda: action() if epoch == self._epoch else None)
        if world.hit(world.faults.double):
            world.later(arrival_s + world.rng.uniform(0, 30), action)


class Uploading:
    """A device that offers a blob, and a coordinator that takes it in."""

    def __init__(self, seed: int, faults: Faults, blob: bytes = BLOB, chunk: int = 4096) -> None:
        self.world = World(random.Random(seed), faults)
        self.up, self.down = Wire(self.world), Wire(self.world)
        self.blob = blob
        self.rng = np.random.default_rng(seed)
        self.upload = Upload(describe(blob, chunk), self.rng)
        self.part = bytearray(len(blob))
        self.intake: Intake | None = None
        self.stored = False
        self.delivered = False
        self.cuts = 0
        self.chunks = self.offers = self.bytes_sent = 0
        self.connected = False
        self.connect()

    def run(self) -> None:
        """Until the device has its receipt."""
        while not self.delivered:
            assert self.world.now < 5000, "the upload has not ended"
            self.poll()
            timers = [self.upload.timer(), self.intake.timer() if self.intake else None]
            self.world.advance(min((t for t in timers if t is not None), default=None))
        assert bytes(self.part) == self.blob

    def connect(self) -> None:
        self.connected = True
        self.upload.connected(self.world.now)
        if self.world.faults.cut_every_s and self.world.now < self.world.faults.until_s:
            self.world.later(
                self.world.rng.expovariate(1 / self.world.faults.cut_every_s), self.cut
            )

    def cut(self) -> None:
        if not self.connected:
            return
        self.connected = False
        self.cuts += 1
        self.up.cut()
        self.down.cut()
        self.upload.disconnected()
        self.world.later(self.world.rng.uniform(0.1, 3.0), self.connect)

    def poll(self) -> None:
        if self.upload.wants_smaller_chunks:
            smaller = self.upload.manifest.chunk_bytes // 2
            self.upload = Upload(describe(self.blob, smaller), self.rng)
            if self.connected:
                self.upload.connected(self.world.now)
        manifest = self.upload.manifest
        for index in self.upload.poll(self.world.now):
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
        number = self.upload.number
        data = self.blob if self.upload.inline else b""
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
            bitmap, upload = self.intake.bitmap(), self.upload
            self.down.send(FRAME, lambda: self.have(upload, number, bitmap))

    def have(self, upload: Upload, number: int, bitmap: bytes) -> None:
        if self.connected and upload is self.upload:
            upload.receive(number, bitmap, CREDIT, self.world.now)

    def receipt(self) -> None:
        self.delivered = self.delivered or self.connected


@pytest.mark.parametrize("block", range(10))
def test_an_upload_always_arrives(block: int) -> None:
    cuts = 0
    for seed in range(400 * block, 400 * (block + 1)):
        uploading = Uploading(seed, HOSTILE)
        uploading.run()
        cuts += uploading.cuts
    assert cuts > 400


@pytest.mark.parametrize("block", range(4))
def test_a_cut_costs_no_more_than_two_windows(block: int) -> None:
    """Invariant I10; in fact one window, for nothing but what was on its way is sent again."""
    cuts = 0
    for seed in range(100 * block, 100 * (block + 1)):
        uploading = Uploading(seed, CUTS)
        uploading.run()
        cuts += uploading.cuts
        again = uploading.chunks - uploading.upload.manifest.count
        assert again <= CREDIT * uploading.cuts
    assert cuts > 100


@pytest.mark.parametrize("latency_s", [0.0, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("bytes_per_s", [1e3, 2e3, 5e3, 2e4, 1e5, 1e9])
@pytest.mark.parametrize("chunk", [4096, 16384, 65536])
def test_on_a_clean_link_nothing_is_sent_twice(
    latency_s: float, bytes_per_s: float, chunk: int
) -> None:
    faults = replace(CLEAN, latency_s=latency_s, bytes_per_s=bytes_per_s)
    uploading = Uploading(1, faults, chunk=chunk)
    uploading.run()
    assert uploading.chunks == uploading.upload.manifest.count
    if bytes_per_s == 1e9:
        assert uploading.offers == 1


@pytest.mark.parametrize("size", [1, 100, 4096, MAX_INLINE_BYTES])
def test_a_small_blob_goes_with_its_offer(size: int) -> None:
    uploading = Uploading(1, CLEAN, BLOB[:size], chunk=65536)
    uploading.run()
    assert (uploading.offers, uploading.chunks) == (1, 0)


@pytest.mark.parametrize("seed", range(100))
def test_the_whole_blob_is_inline_once_only(seed: int) -> None:
    faults = replace(HOSTILE, cut_every_s=1.0, restart=0.0, bytes_per_s=10_000)
    uploading = Uploading(seed, faults, BLOB[:MAX_INLINE_BYTES], chunk=65536)
    uploading.run()
    digests = 16 * uploading.offers
    halvings = 5  # a smaller cut may be tried inline again
    assert uploading.bytes_sent - digests <= MAX_INLINE_BYTES * (uploading.chunks + halvings)


@pytest.mark.parametrize("longest", [5_000, 9_000, 20_000, 40_000])
@pytest.mark.parametrize("size", [len(BLOB), 30_000, 20_000])
def test_chunks_shrink_until_they_fit(longest: int, size: int) -> None:
    faults = replace(CLEAN, longest=longest)
    uploading = Uploading(1, faults, BLOB[:size], chunk=65536)
    uploading.run()
    chunk_bytes = uploading.upload.manifest.chunk_bytes
    largest = min(size, chunk_bytes)
    assert largest + FRAME <= longest
    assert chunk_bytes == 65536 or min(size, 2 * chunk_bytes) + FRAME > longest
    assert uploading.cuts <= 20


def test_chunks_do_not_shrink_while_nobody_answers() -> None:
    """A coordinator that is down is no reason: no chunk was lost on the link."""
    upload = Upload(describe(BLOB, 65536), np.random.default_rng(1))
    for now in range(0, 1000, 10):
        upload.connected(now)
        assert upload.poll(now) == [None]
        upload.disconnected()
    assert not upload.wants_smaller_chunks


class Device:
    """One device that fetches a blob; it hears every chunk that is published while it listens."""

    def __init__(self, world: World, server: "Server", blob: bytes, name: str) -> None:
        self.world, self.server, self.blob, self.name = world, server, blob, name
        self.up, self.down = Wire(world), Wire(world)
        self.part = bytearray(len(blob))
        seed = world.rng.randrange(2**32)
        self.fetch = Fetch(server.manifest, set(), np.random.default_rng(seed))
        self.gets = self.cuts = 0
        self.heard: Counter[int] = Counter()
        self.connected = False
        world.later(world.rng.uniform(0, server.spread_s), self.connect)

    def connect(self) -> None:
        self.connected = True
        self.fetch.connected(self.world.now)
        if self.world.faults.cut_every_s and self.world.now < self.world.faults.until_s:
            self.world.later(
                self.world.rng.expovariate(1 / self.world.faults.cut_every_s), self.cut
            )

    def cut(self) -> None:
        if self.connected:
            self.connected = False
            self.cuts += 1
            self.up.cut()
            self.down.cut()
            self.fetch.disconnected()
            self.world.later(self.world.rng.uniform(0.1, 3.0), self.connect)

    def poll(self) -> None:
        missing = self.fetch.poll(self.world.now)
        if missing is not None:
            self.gets += 1
            bitmap: bytes = missing
            self.up.send(FRAME, lambda: self.server.request(self.name, bitmap))

    def publish(self, index: int, data: bytes) -> None:
        if self.connected and not self.fetch.complete:
            self.down.send(FRAME + len(data), lambda: self.take(index, data))

    def take(self, index: int, data: bytes) -> None:
        if not self.connected or self.fetch.complete:
            return
        self.heard[index] += 1
        if self.fetch.chunk(index, data, self.world.now):
            offset, length = self.server.manifest.span(index)
            self.part[offset : offset + length] = data


class Server:
    """The coordinator's end of downloads, for a fleet."""

    def __init__(
        self, seed: int, faults: Faults, devices: int, spread_s: float, chunk: int = 4096
    ) -> None:
        self.world = World(random.Random(seed), faults)
        self.manifest = describe(BLOB, chunk)
        self.spread_s = spread_s
        self.sent: Counter[int] = Counter()
        self.serving = Serving(self.manifest, 1.0)
        self.devices = [Device(self.world, self, BLOB, f"d{i}") for i in range(devices)]

    def run(self) -> None:
        """Until every device has the blob."""
        while not all(device.fetch.complete for device in self.devices):
            assert self.world.now < 5000, "the downloads have not ended"
            for device in self.devices:
                device.poll()
            for index in self.serving.poll(self.world.now, 16):
                self.publish(index)
            timers = [device.fetch.timer() for device in self.devices]
            timers.append(self.serving.timer())
            self.world.advance(min((t for t in timers if t is not None), default=None))
        assert all(bytes(device.part) == BLOB for device in self.devices)

    def request(self, asker: str, missing: bytes) -> None:
        if self.world.hit(self.world.faults.restart):
            self.serving = Serving(self.manifest, 1.0)
        waiting = sum(not device.fetch.complete for device in self.devices)
        self.serving.request(asker, missing, waiting, self.world.now)

    def publish(self, index: int) -> None:
        self.sent[index] += 1
        offset, length = self.manifest.span(index)
        for device in self.devices:
            device.publish(index, BLOB[offset : offset + length])


@pytest.mark.parametrize("block", range(6))
def test_downloads_always_arrive(block: int) -> None:
    for seed in range(100 * block, 100 * (block + 1)):
        Server(seed, replace(HOSTILE, until_s=120.0), 1 + seed % 4, 5.0).run()


@pytest.mark.parametrize("block", range(4))
def test_a_cut_costs_a_download_no_more_than_it_lost(block: int) -> None:
    """One device on a link that only cuts: what it hears twice is what it asked for twice."""
    cuts = 0
    for seed in range(75 * block, 75 * (block + 1)):
        server = Server(seed, CUTS, 1, 0.0)
        server.run()
        device = server.devices[0]
        cuts += device.cuts
        assert max(device.heard.values()) <= 1 + device.cuts
        assert sum(device.heard.values()) - server.manifest.count <= 2 * CREDIT * device.cuts
    assert cuts > 75


@pytest.mark.parametrize("latency_s", [0.0, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("bytes_per_s", [2e4, 1e5, 1e9])
@pytest.mark.parametrize("devices", [1, 2, 20])
def test_a_whole_fleet_costs_one_pass(latency_s: float, bytes_per_s: float, devices: int) -> None:
    faults = replace(CLEAN, latency_s=latency_s, bytes_per_s=bytes_per_s)
    server = Server(1, faults, devices, 0.0)
    server.run()
    assert set(server.sent.values()) == {1}
    assert all(device.gets == 2 for device in server.devices)


@pytest.mark.parametrize("bytes_per_s", [500, 1_000, 2_000, 5_000])
@pytest.mark.parametrize("chunk", [4096, 16384])
def test_a_slow_link_is_not_filled_with_repetitions(bytes_per_s: float, chunk: int) -> None:
    """Fault N4. Only the first chunk, whose time nobody knows yet, may be asked for again."""
    server = Server(1, replace(SLOW, bytes_per_s=bytes_per_s), 1, 0.0, chunk)
    server.run()
    assert max(count for index, count in server.sent.items() if index) == 1
    assert server.sent[0] <= 7


def test_devices_that_come_one_after_the_other_share_a_pass() -> None:
    faults = replace(CLEAN, bytes_per_s=1e5)
    together, apart = Server(1, faults, 30, 0.2), Server(1, faults, 30, 3.0)
    together.run()
    apart.run()
    count = together.manifest.count
    assert sum(together.sent.values()) <= 2 * count
    assert sum(apart.sent.values()) <= 4 * count


def test_the_fake_link_itself_is_as_bad_as_it_should_be() -> None:
    world = World(random.Random(1), HOSTILE)
    wire = Wire(world)
    arrived: list[int] = []
    for number in range(1000):
        wire.send(1, lambda n=number: arrived.append(n))  # type: ignore[misc]
    while world.due:
        world.advance(None)
    counts = Counter(arrived)
    assert 800 < len(counts) < 900
    assert 100 < len(arrived) - len(counts) < 200
    wire.send(1, lambda: arrived.append(-1))
    wire.cut()
    while world.due:
        world.advance(None)
    assert arrived.count(-1) <= 1


def test_bitmaps_name_the_first_chunk_first() -> None:
    assert to_bitmap({0}, 16) == b"\x01\x00"
