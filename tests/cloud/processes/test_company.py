"""Processes that lose the broker, or each other, and serve the whole fleet again afterwards."""

import time
from pathlib import Path

import pytest
from tests.cloud.stores import in_a_folder, open_store
from tests.fleet import failing

from sedge_cloud.company import Company
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.processes.membership import LOOK_S, Membership
from sedge_cloud.store.database import Store
from sedge_cloud.store.leases import LEASE_S, Leases
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.topics import SHARDS, hint

pytestmark = in_a_folder


class Clock:
    def __init__(self) -> None:
        self.now = time.monotonic()


class Link:
    """A link whose broker confirms at once."""

    subscriptions: tuple[str, ...] = ()
    is_settled = True

    def __init__(self) -> None:
        self.up = False


class Process:
    """One process of the fleet's, which has no broker yet."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.members = Membership(store, clock.now, False)
        core = Coordinator("fleet", store, 0.1, 1, wall=self.members.wall, shared=True)
        self._clock, self._link = clock, Link()
        self._company = Company(core, self.members, False)
        self._company.begin(self._link, None)

    def connected(self, up: bool) -> None:
        """The broker is there, or away."""
        self._link.up = up
        if not up:
            self._company.disconnected(self._clock.now)

    def step(self) -> set[str]:
        """One turn of its loop; the topics on which it sends."""
        effects = self._company.poll(self._clock.now)
        return {effect.topic for effect in effects if isinstance(effect, Send)}


class Host:
    def __init__(self, clock: Clock, one: Store, two: Store) -> None:
        self._clock = clock
        self.one, self.two = Process(one, clock), Process(two, clock)

    def go_on(self, seconds: float, *processes: Process) -> None:
        """Let these live for so long, and the other one stand still."""
        until = self._clock.now + seconds
        while self._clock.now < until:
            self._clock.now += LOOK_S / 3  # so that one may rest between two looks of the other
            for process in processes:
                process.step()

    def connected(self, up: bool) -> None:
        """The broker is there for both, or away, for longer than a lease."""
        self.one.connected(up)
        self.two.connected(up)
        self.go_on(3 * LEASE_S, self.one, self.two)

    def shares_the_fleet(self) -> bool:
        """Whether both have half of the shards, and one leads."""
        one, two = self.one.members, self.two.members
        return len(one.shards) == len(two.shards) == SHARDS // 2 and one.leads != two.leads


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    clock = Clock()

    def now(*given: object) -> float:
        return clock.now

    monkeypatch.setattr(Leases, "_now", now)
    one, two = open_store(tmp_path), open_store(tmp_path)
    one.require_fleet("fleet")
    return Host(clock, one, two)


def test_processes_that_all_lose_the_broker_share_the_fleet_once_it_is_back(host: Host) -> None:
    host.connected(False)  # as when it starts last
    host.connected(True)
    assert host.shares_the_fleet()
    host.connected(False)
    host.connected(True)
    assert host.shares_the_fleet()


def test_who_rests_while_the_last_other_one_dies_serves_the_whole_fleet(host: Host) -> None:
    host.connected(True)
    host.one.connected(False)
    host.go_on(3 * LEASE_S, host.one, host.two)
    assert len(host.two.members.shards) == SHARDS and host.two.members.leads
    host.go_on(3 * LEASE_S, host.one)
    host.one.connected(True)
    host.go_on(LEASE_S, host.one)
    assert len(host.one.members.shards) == SHARDS and host.one.members.leads


def test_who_could_not_say_that_it_takes_shards_again_says_it_later(host: Host) -> None:
    host.connected(True)
    host.connected(False)
    with failing(Leases, "retire", StorageError("the database is away")):
        host.one.connected(True)
        host.go_on(1, host.one, host.two)
    host.connected(True)
    assert host.shares_the_fleet()


def test_shards_that_come_back_between_two_looks_are_taken_anew(host: Host) -> None:
    """Their devices have heard the process that has died since, and ignore older start counts."""
    host.one.connected(True)
    host.two.connected(True)
    while not host.one.members.going:
        host.go_on(LOOK_S / 3, host.two, host.one)
    host.one.step()  # hands over, and then has a long step
    host.go_on(LOOK_S, host.two)
    gone = host.two.members.shards
    assert gone
    host.two.members.leave()
    assert host.one.step() == {hint("fleet", shard) for shard in gone}
    assert len(host.one.members.shards) == SHARDS
