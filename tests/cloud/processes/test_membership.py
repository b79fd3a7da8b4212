"""A process among others: what it has, what it loses, and what it knows of it."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cloud.stores import in_a_folder, on_servers, open_store
from tests.fleet import failing

from sedge_cloud.processes import heartbeat, membership
from sedge_cloud.processes.heartbeat import Heartbeat
from sedge_cloud.processes.membership import Membership
from sedge_cloud.store import leases
from sedge_cloud.store.connection import LeaseLost
from sedge_cloud.store.contract import Dialect
from sedge_cloud.store.opening import open_folder
from sedge_protocol.errors import StorageError

LEASE_S = 0.5


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of half a second is a long one."""
    for module in (leases, membership):
        monkeypatch.setattr(module, "LEASE_S", LEASE_S)
        monkeypatch.setattr(module, "RENEW_S", 0.05)
    monkeypatch.setattr(membership, "LOOK_S", 0.01)


def process(folder: Path, alone: bool = False) -> Membership:
    return Membership(open_store(folder), time.monotonic(), alone)


def go_on(until: Callable[[], bool], *processes: Membership) -> None:
    """Let these do what processes do, whose links take no time; raises if it leads nowhere."""
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline, [(p.token, len(p.shards), p.coming) for p in processes]
        for one in processes:
            one.poll(time.monotonic())
            if one.coming:
                one.listens()
            if one.going:
                one.hand_over()


def told(one: Membership) -> list[str]:
    return [note.text for note in one.take_notes()]


def test_the_first_has_everything_and_the_second_half_of_it(tmp_path: Path) -> None:
    # To open the second may take the first's lease.
    stores = open_store(tmp_path), open_store(tmp_path)
    one = Membership(stores[0], time.monotonic(), False)
    assert (len(one.shards), one.leads) == (64, True)
    two = Membership(stores[1], time.monotonic(), False)
    assert (len(two.shards), two.leads) == (0, False)
    go_on(lambda: len(one.shards) == len(two.shards) == 32, one, two)
    assert not one.shards & two.shards and one.leads and not two.leads
    told(one)
    told(two)
    one.retire(True)
    go_on(lambda: len(two.shards) == 64 and two.leads, one, two)
    go_on(lambda: not one.shards, one)


def test_a_process_that_was_paused_knows_it_and_begins_anew(tmp_path: Path) -> None:
    one, two = process(tmp_path), process(tmp_path)
    go_on(lambda: len(one.shards) == len(two.shards) == 32, one, two)
    token = one.token
    go_on(lambda: len(two.shards) == 64 and two.leads, two)  # while the other stands still
    assert any(text.endswith("no longer serves the fleet") for text in told(two))
    assert not one.is_sure(time.monotonic()) and len(one.shards) == 32
    assert one.poll(time.monotonic()) and not one.shards and not one.leads
    assert one.poll(time.monotonic()) and one.token > token and not one.shards
    assert any("another has replaced it" in text for text in told(one))
    go_on(lambda: len(one.shards) == len(two.shards) == 32, one, two)
    assert two.leads


def test_after_an_outage_of_all_nobody_is_taken_for_dead_at_once(tmp_path: Path) -> None:
    one, two = process(tmp_path), process(tmp_path)
    go_on(lambda: len(one.shards) == len(two.shards) == 32, one, two)
    tokens = one.token, two.token
    time.sleep(1.2 * LEASE_S)  # as when the database was away
    one.poll(time.monotonic())
    two.poll(time.monotonic())
    assert (one.token, two.token) == tokens and len(one.shards) == len(two.shards) == 32


def test_who_is_alone_takes_the_place_of_whoever_was_there(tmp_path: Path) -> None:
    """It holds the store's lock: a container's last run, which nobody can tell from a live one, is over."""
    one = process(tmp_path, alone=True)
    two = process(tmp_path, alone=True)
    assert len(two.shards) == 64 and two.leads
    with pytest.raises(StorageError, match="another has replaced it"):
        one.poll(time.monotonic() + LEASE_S)


@in_a_folder
def test_who_is_alone_stays_without_a_write(tmp_path: Path) -> None:
    one = process(tmp_path, alone=True)
    one._store._db.execute("PRAGMA query_only = ON")  # as little as a full disk takes
    later = time.monotonic() + 3 * LEASE_S
    assert not one.poll(later) and one.is_sure(later + 3 * LEASE_S) and not told(one)


def test_a_lease_from_before_the_clock_was_set_back_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board without a clock of its own begins with an earlier time after a power cut."""
    process(tmp_path)
    _set_clock(monkeypatch, -2400)
    two = process(tmp_path)
    assert len(two.shards) == 64 and two.leads


@in_a_folder
@pytest.mark.parametrize("seconds", [-2400, 2400])
def test_who_lives_when_the_clock_is_set_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    one, two = process(tmp_path), process(tmp_path)
    go_on(lambda: len(one.shards) == len(two.shards) == 32, one, two)
    tokens = one.token, two.token
    _set_clock(monkeypatch, seconds)
    until = time.monotonic() + LEASE_S
    go_on(lambda: time.monotonic() > until, one, two)
    assert (one.token, two.token) == tokens and len(one.shards) == len(two.shards) == 32


def _set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    right = leases.Leases._now

    def now(store: leases.Leases, db: Dialect) -> float:
        return right(store, db) + seconds

    monkeypatch.setattr(leases.Leases, "_now", now)


def test_a_dead_process_of_this_host_is_replaced_at_once(tmp_path: Path) -> None:
    one = process(tmp_path)
    dead = replace(one._process, started=one._process.started - 1)
    store = open_store(tmp_path)
    store.join(dead, lambda process, now: True)
    two = process(tmp_path)
    assert len(two.shards) == 64 and two.leads


def test_the_databases_clock_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose clock is a day ahead is told, and goes by the other."""
    right = time.time()
    monkeypatch.setattr(time, "time", lambda: right + 86_400)
    one = process(tmp_path)
    assert abs(one.wall(time.monotonic()) - right) < 60
    assert len(one.shards) == 64
    assert any("this host's clock is +86" in text for text in told(one))


@in_a_folder
def test_a_loop_that_works_for_longer_than_a_lease_keeps_it_and_one_that_hangs_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "RENEW_S", 0.05)
    one = process(tmp_path)
    token = one.token
    with (
        closing(open_folder(tmp_path, durable=False, any_thread=True)) as store,
        closing(Heartbeat(store, one)),
    ):
        time.sleep(3 * LEASE_S)  # one step of the loop
        two = process(tmp_path)
        go_on(lambda: len(one.shards) == len(two.shards) == 32, one, two)
        assert one.token == token and one.leads
        monkeypatch.setattr(heartbeat, "LONGEST_STEP_S", 0.1)
        go_on(lambda: len(two.shards) == 64 and two.leads, two)


@on_servers
def test_a_process_that_is_stopped_within_a_heartbeat_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "IDLE_S", 0.2)
    monkeypatch.setattr(heartbeat, "RENEW_S", 60)
    one, store = process(tmp_path), open_store(tmp_path)
    with closing(Heartbeat(store, one)):
        store._db.begin()
        store._db.execute("UPDATE processes SET expires = expires WHERE token = ?", (one.token,))
        two = process(tmp_path)
        go_on(lambda: len(two.shards) == 64 and two.leads, two)


def test_who_was_replaced_and_cannot_join_again_yet_writes_nothing(tmp_path: Path) -> None:
    one, two = process(tmp_path), process(tmp_path)
    go_on(lambda: len(two.shards) == 64, two)
    one.poll(time.monotonic())
    with failing(one._store, "_bury", StorageError("the database is away")):
        assert not one.poll(time.monotonic()) and not one.is_sure(time.monotonic())
        with pytest.raises(LeaseLost):
            one._store.retire(True)
    go_on(lambda: len(one.shards) == 32, one, two)
