"""Processes and leases as rows: who has joined, who was replaced, and that nobody writes after that."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.cloud.stores import FOLDER, open_store
from tests.fleet import always

from sedge_cloud.store import leases, sqlite
from sedge_cloud.store.connection import LeaseLost
from sedge_cloud.store.database import Store
from sedge_cloud.store.leases import LeaseRow, ProcessRow
from sedge_cloud.store.records import ClosedRound
from sedge_cloud.store.rows import RoundRow, RunRow
from sedge_protocol.errors import StorageError

HERE = ProcessRow(0, "host", "boot", 1, 1)


nobody_is_gone, everybody_is_gone = always(False), always(True)


def joined(folder: Path) -> Store:
    store = open_store(folder)
    store.join(HERE, nobody_is_gone)
    return store


def test_tokens_grow_and_a_lease_lasts_ten_seconds_by_the_databases_clock(tmp_path: Path) -> None:
    one, two = joined(tmp_path), joined(tmp_path)
    first, second = one.processes()
    assert second.token > first.token > 0
    assert first.expires - first.joined == pytest.approx(leases.LEASE_S)
    before = one.clock()
    assert before <= one.renew() <= one.clock()
    two.leave()
    assert [row.token for row in one.processes()] == [first.token]
    assert two.join(HERE, nobody_is_gone).token > second.token


def test_leases_change_in_one_transaction_of_whoever_is_alive(tmp_path: Path) -> None:
    one, two = joined(tmp_path), joined(tmp_path)
    mine = one.processes()[0].token
    taken = [LeaseRow("00", mine), LeaseRow("leader", mine)]
    one.settle(lambda living, rows: taken, nobody_is_gone)
    held = {row.name: row.token for row in two.leases() if row.token}
    assert held == {"00": mine, "leader": mine}
    assert len(two.leases()) == 65
    seen = list[int]()

    def look(living: Sequence[ProcessRow], rows: Sequence[LeaseRow]) -> Sequence[LeaseRow]:
        seen.extend(row.token for row in living)
        return []

    two.settle(look, everybody_is_gone)
    assert seen == [two.processes()[0].token]
    with pytest.raises(LeaseLost, match="another has replaced it"):
        one.settle(lambda living, rows: [LeaseRow("00", 0)], nobody_is_gone)
    with pytest.raises(LeaseLost):
        one.renew()
    assert {row.token for row in two.leases()} == {0, mine}


def test_who_leads_no_longer_writes_nothing_of_rounds(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor if it was stopped between its last statement and the commit."""
    monkeypatch.setattr(leases, "IDLE_S", 0.2)
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    one, two = joined(tmp_path), joined(tmp_path)

    def lead(store: Store) -> None:
        assert store.token is not None
        row = LeaseRow("leader", store.token)
        two.settle(lambda living, rows: [row], nobody_is_gone)

    def opened(number: int) -> None:
        one.open_round(RoundRow("run", number, "train", True, bytes(32), bytes(32), None), [])

    one.add_run(RunRow("run", "running", b"", bytes(32), b"state", 1.5))
    lead(one)
    opened(1)
    lead(two)
    closed = ClosedRound("run", 1, 0, b"", b"another state", "running")
    for write in (
        lambda: opened(2),
        lambda: one.close_round(closed),
        lambda: one.set_status("run", "failed"),
    ):
        with pytest.raises(StorageError, match="another process leads") as caught:
            write()
        assert not isinstance(caught.value, LeaseLost)
    assert [(row.round, row.open) for row in two.rounds("run")] == [(1, True)]
    assert [(row.status, row.state) for row in two.runs()] == [("running", b"state")]
    assert two.close_round(closed)
    lead(one)
    taken, commit = list[bool](), one._db.commit

    def late() -> None:
        try:
            lead(two)
        except StorageError:  # SQLite: whoever writes keeps all others out
            taken.append(False)
        else:
            taken.append(True)
        commit()

    monkeypatch.setattr(one._db, "commit", late)
    with nullcontext() if engine == FOLDER else pytest.raises(StorageError):
        opened(2)
    assert taken == [len(two.rounds("run")) == 1]


class Stopped:
    """Stops a store's connection before its n-th step: in its place ``meanwhile`` is called."""

    def __init__(self, store: Store, step: int, meanwhile: Callable[[], None]) -> None:
        self._db: Any = store._db
        self._left = step
        self._meanwhile = meanwhile
        for name in ("begin", "execute", "insert", "commit"):
            setattr(self._db, name, self._counted(getattr(self._db, name)))

    @property
    def reached(self) -> bool:
        return self._left <= 0

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*values: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self._meanwhile()
            return call(*values, **named)

        return counted


def test_a_process_that_is_stopped_anywhere_in_a_write_writes_nothing_once_it_is_replaced(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the transaction, between its statements, and between the last one and the commit."""
    monkeypatch.setattr(leases, "IDLE_S", 0.2)
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    step, outcomes = 0, list[str]()
    while True:
        step += 1
        device = f"pi-{step}"
        outcome = stopped_at(step, device, tmp_path)
        if not outcome:
            break
        outcomes.append(outcome)
    assert len(outcomes) > 4 and set(outcomes) <= {"refused", "ended", "before"}
    assert "refused" in outcomes and ("before" if engine == FOLDER else "ended") in outcomes


def stopped_at(step: int, device: str, folder: Path) -> str:
    """What became of a write of two rows that was stopped there; empty if it has fewer steps."""
    stopped, other = joined(folder), joined(folder)
    taken = list[bool]()

    def take_over() -> None:
        try:
            other.settle(lambda living, rows: [], everybody_is_gone)
        except StorageError:  # SQLite: whoever writes keeps all others out
            taken.append(False)
        else:
            taken.append(True)

    place = Stopped(stopped, step, take_over)
    said = ""
    try:
        stopped.add_devices({device: bytes(32), f"{device}-too": bytes(32)})
    except LeaseLost:
        said = "refused"
    except StorageError:
        said = "ended"
    there = [row.device for row in other.devices() if row.device.startswith(device)]
    if not place.reached:
        assert there == [device, f"{device}-too"]
        return ""
    assert len(there) == (0 if said else 2)
    if not taken[0]:
        assert not said
        take_over()
        said = "before"
    assert taken[-1]
    with pytest.raises(LeaseLost):
        stopped.add_device(f"{device}-late", bytes(32))
    return said
