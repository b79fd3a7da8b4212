"""A coordinator and the devices that fetch from it, joined by fake links.

Nothing here is mocked but the wire; the rules of the two callers (downloads.py and fetching.py) are played
in a few lines each.
"""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.protocol.fake_link import BLOB, CLEAN, CUTS, FRAME, HOSTILE, SLOW, End, Faults, World

from sedge_protocol.wire.serving import Serving
from sedge_protocol.wire.transfer import CREDIT, Fetch, describe


class Device(End[Fetch]):
    """One device that fetches a blob; it hears every chunk that is published while it listens."""

    def __init__(self, world: World, server: "Server", blob: bytes, name: str) -> None:
        super().__init__(world)
        self.server, self.blob, self.name = server, blob, name
        self.part = bytearray(len(blob))
        seed = world.rng.randrange(2**32)
        self.transfer = Fetch(server.manifest, set(), np.random.default_rng(seed))
        self.gets = 0
        self.heard: Counter[int] = Counter()
        world.later(world.rng.uniform(0, server.spread_s), self.connect)

    def poll(self) -> None:
        missing = self.transfer.poll(self.world.now)
        if missing is not None:
            self.gets += 1
            bitmap: bytes = missing
            self.up.send(FRAME, lambda: self.server.request(self.name, bitmap))

    def publish(self, index: int, data: bytes) -> None:
        if self.connected and not self.transfer.complete:
            self.down.send(FRAME + len(data), lambda: self.take(index, data))

    def take(self, index: int, data: bytes) -> None:
        if not self.connected or self.transfer.complete:
            return
        self.heard[index] += 1
        if self.transfer.chunk(index, data, self.world.now):
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
        while not all(device.transfer.complete for device in self.devices):
            assert self.world.now < 5000, "the downloads have not ended"
            for device in self.devices:
                device.poll()
            for index in self.serving.poll(self.world.now, 16):
                self.publish(index)
            timers = [device.transfer.timer() for device in self.devices]
            timers.append(self.serving.timer())
            self.world.advance(min((t for t in timers if t is not None), default=None))
        assert all(bytes(device.part) == BLOB for device in self.devices)

    def request(self, asker: str, missing: bytes) -> None:
        if self.world.hit(self.world.faults.restart):
            self.serving = Serving(self.manifest, 1.0)
        waiting = sum(not device.transfer.complete for device in self.devices)
        self.serving.request(asker, missing, waiting, self.world.now)

    def publish(self, index: int) -> None:
        self.sent[index] += 1
        offset, length = self.manifest.span(index)
        for device in self.devices:
            device.publish(index, BLOB[offset : offset + length])


def test_downloads_always_arrive() -> None:
    for seed in range(150):
        Server(seed, replace(HOSTILE, until_s=120.0), 1 + seed % 4, 5.0).run()


def test_a_cut_costs_a_download_no_more_than_it_lost() -> None:
    """One device on a link that only cuts: what it hears twice is what it asked for twice."""
    cuts = 0
    for seed in range(75):
        server = Server(seed, CUTS, 1, 0.0)
        server.run()
        device = server.devices[0]
        cuts += device.cuts
        assert max(device.heard.values()) <= 1 + device.cuts
        assert sum(device.heard.values()) - server.manifest.count <= 2 * CREDIT * device.cuts
    assert cuts > 75


@pytest.mark.parametrize("latency_s", [0.0, 0.9])
@pytest.mark.parametrize("bytes_per_s", [2e4, 1e9])
@pytest.mark.parametrize("devices", [1, 20])
def test_a_whole_fleet_costs_one_pass(latency_s: float, bytes_per_s: float, devices: int) -> None:
    server = Server(1, replace(CLEAN, latency_s=latency_s, bytes_per_s=bytes_per_s), devices, 0.0)
    server.run()
    assert set(server.sent.values()) == {1}
    assert all(device.gets == 2 for device in server.devices)


@pytest.mark.parametrize("bytes_per_s", [500, 5_000])
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
