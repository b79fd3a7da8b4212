"""A link between two ends of a transfer that drops, doubles and cuts, under a virtual clock."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from sedge_protocol.wire.transfer import MIN_CHUNK_BYTES, Fetch, Upload

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


Transfer = TypeVar("Transfer", Upload, Fetch)


class End(Generic[Transfer]):
    """A device's end of a link, and its ``transfer``, which learns of every connection and cut."""

    transfer: Transfer

    def __init__(self, world: World) -> None:
        self.world = world
        self.up, self.down = Wire(world), Wire(world)
        self.connected = False
        self.cuts = 0

    def connect(self) -> None:
        world, faults = self.world, self.world.faults
        self.connected = True
        self.transfer.connected(world.now)
        if faults.cut_every_s and world.now < faults.until_s:
            world.later(world.rng.expovariate(1 / faults.cut_every_s), self.cut)

    def cut(self) -> None:
        if self.connected:
            self.connected = False
            self.cuts += 1
            self.up.cut()
            self.down.cut()
            self.transfer.disconnected()
            self.world.later(self.world.rng.uniform(0.1, 3.0), self.connect)
