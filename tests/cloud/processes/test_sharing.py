"""Shares of shards: even, all of them, and with few that change hands; and who is listed as serving."""

import random
from collections import Counter

from msgspec.structs import replace

from sedge_cloud.facts.processes import SILENT_S, processes_of
from sedge_cloud.processes.sharing import plan, shares
from sedge_cloud.store.leases import LeaseRow, ProcessRow
from sedge_cloud.store.rows import CoordinatorRow
from sedge_cloud.store.schema import LEADER
from sedge_protocol.wire.topics import SHARD_NAMES


class Processes:
    """Processes that plan one after the other, and do what a shard's way from one to the other takes."""

    def __init__(self) -> None:
        self.living: dict[int, ProcessRow] = {}
        self.leases = {name: LeaseRow(name, 0) for name in (LEADER, *SHARD_NAMES)}
        self.moved = 0

    def join(self, token: int) -> None:
        self.living[token] = ProcessRow(token, "host", "boot", token, 0)

    def turn(self, token: int) -> None:
        rows = list(self.living.values())
        for lease in plan(token, rows, list(self.leases.values())):
            assert token in (lease.token, self.leases[lease.name].token)
            self.leases[lease.name] = lease
        for lease in list(self.leases.values()):
            if lease.heir == token:
                self.leases[lease.name] = replace(lease, ready=True)
            elif lease.ready and lease.token == token and lease.heir in self.living:
                self.leases[lease.name] = LeaseRow(lease.name, lease.heir)
                self.moved += 1

    def settle(self) -> Counter[int]:
        for _ in range(5):
            for token in self.living:
                self.turn(token)
        counted = Counter(lease.token for lease in self.leases.values() if lease.name != LEADER)
        assert self.leases[LEADER].token in self.staying or not self.staying
        return counted

    @property
    def staying(self) -> list[int]:
        return [token for token, row in self.living.items() if not row.leaves]


def test_shares_are_even_and_all() -> None:
    for count in (1, 2, 3, 10, 64, 100):
        of = shares(range(1, count + 1))
        assert sum(of.values()) == 64 and max(of.values()) - min(of.values()) <= 1


def test_one_more_takes_its_share_and_no_other_shard_moves() -> None:
    fleet = Processes()
    fleet.join(1)
    assert fleet.settle() == {1: 64}
    fleet.join(2)
    assert fleet.settle() == {1: 32, 2: 32} and fleet.moved == 32
    fleet.join(3)
    assert fleet.settle() == {1: 22, 2: 21, 3: 21} and fleet.moved == 32 + 21
    assert fleet.leases[LEADER].token == 1


def test_who_dies_is_replaced_and_who_leaves_hands_over() -> None:
    fleet = Processes()
    for token in (1, 2, 3):
        fleet.join(token)
    fleet.settle()
    del fleet.living[1]
    assert fleet.settle() == {2: 32, 3: 32}
    moved = fleet.moved
    fleet.living[2] = replace(fleet.living[2], leaves=True)
    assert fleet.settle() == {3: 64} and fleet.moved == moved + 32
    fleet.living[3] = replace(fleet.living[3], leaves=True)
    assert fleet.settle() == {3: 64} and fleet.leases[LEADER].token in (0, 3)


def test_whoever_comes_and_goes_every_shard_has_one_owner_in_the_end() -> None:
    for seed in range(200):
        rng, fleet, token = random.Random(seed), Processes(), 0
        for _ in range(rng.randrange(1, 30)):
            what = rng.random()
            if what < 0.4:
                fleet.join(token := token + 1)
            elif what < 0.6 and fleet.living:
                del fleet.living[rng.choice(list(fleet.living))]
            elif what < 0.7 and fleet.staying:
                one = rng.choice(fleet.staying)
                fleet.living[one] = replace(fleet.living[one], leaves=True)
            for _ in range(rng.randrange(4)):
                if fleet.living:
                    fleet.turn(rng.choice(list(fleet.living)))
        fleet.join(token + 1)
        assert dict(fleet.settle()) == shares(fleet.staying), seed


def listed(expires: float, *coordinators: CoordinatorRow) -> int:
    """At 1000, how many processes are listed when one's lease ends then."""
    process = ProcessRow(7, "host", "boot", 1, 1, expires=expires)
    return len(processes_of([process], [LeaseRow(LEADER, 7)], coordinators, 1000.0))


def test_a_process_serves_while_it_has_a_lease_or_gives_signs_of_life() -> None:
    """Who is alone renews no lease."""
    heard = 1000.0 - SILENT_S + 1
    assert listed(1001.0) == listed(940.0, CoordinatorRow(7, running=True, heard=heard)) == 1
    assert not listed(940.0)
    assert not listed(940.0, CoordinatorRow(8, running=True, heard=1000.0))
    assert not listed(940.0, CoordinatorRow(7, running=False, heard=1000.0))
    assert not listed(940.0, CoordinatorRow(7, running=True, heard=heard - 2))
