"""Two ingests and leaders on one store: in whatever order they write, every update counts once.

The leader reads a round's updates in one transaction and closes it in a later one; ingests receive in
between. The fault that this is about: an update is answered COMMITTED by one process, and never counted,
since the round was closed meanwhile by another that had not seen it.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Barrier, BrokenBarrierError

import msgspec
import pytest
from tests.cloud.stores import FOLDER, SERVERS, on_servers, open_store

from sedge_cloud.store.connection import LeaseLost
from sedge_cloud.store.database import Store
from sedge_cloud.store.leases import LeaseRow, ProcessRow
from sedge_cloud.store.records import ClosedRound
from sedge_cloud.store.rows import LATE_ROUNDS, RoundRow, RunRow, UpdateRow
from sedge_cloud.store.schema import LEADER

RUN = RunRow("run", "running", b"config", b"B" * 32, b"state", 1.5)
DEVICES = "abcd"
# On servers a step takes twenty times as long, and chance has less to choose from.
STEPS = {FOLDER: 10_000, SERVERS: 1500}
# Of device, round.
Key = tuple[str, int]


class Race:
    """One run whose rounds are closed by a leader while two ingests receive; what was counted where."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.folder, self.takeovers = folder, 0
        self.leader = self.new_leader()
        self.ingests = [open_store(folder), open_store(folder)]
        self.leader.add_run(RUN)
        self.open = 0
        self.read: tuple[RoundRow, set[Key]] | None = None
        self.counted: dict[int, set[Key]] = {}
        self.receipts: dict[Key, UpdateRow] = {}
        self.steps = (self.receive, self.receive, self.receive, self.look, self.close, self.reject)
        self.open_next()

    def new_leader(self) -> Store:
        """A process that leads in the place of whoever did."""
        leader = open_store(self.folder)
        process = leader.join(ProcessRow(0, "host", "boot", 1, 1), lambda process, now: True)
        lead = LeaseRow(LEADER, process.token)
        leader.settle(lambda processes, leases: [lead], lambda process, now: False)
        return leader

    def open_next(self) -> None:
        self.open += 1
        self.leader.open_round(RoundRow("run", self.open, "train", True, b"", b"", None), [])

    def play(self, steps: int) -> None:
        """So many steps, each by whichever of the three chance chooses."""
        for _ in range(steps):
            self.random.choice(self.steps)()

    def receive(self) -> None:
        """One of the ingests receives an update, good or bad, for the open round or an earlier one."""
        number = max(1, self.open - int(self.random.expovariate(1.0)))
        device = self.random.choice(DEVICES)
        blob = bytes([self.random.randrange(2)]) * 32
        row = UpdateRow("run", number, device, blob, b"report", 1, 0)
        if self.random.random() < 0.1:
            row = row.refused("malformed", "it is bad")
        stored = self.random.choice(self.ingests).commit_receipt(row)
        first = self.receipts.setdefault((device, number), stored)
        assert (stored.blob, stored.late) == (first.blob, first.late), f"{device}, round {number}"
        assert stored.late <= number + LATE_ROUNDS, "it is stale"

    def look(self) -> None:
        """The leader reads what counts in its round."""
        row = self.leader.round("run", self.open)
        assert row is not None
        received = self.leader.received("run", self.open)
        rows = [*received.counted, *received.late]
        self.read = row, {(each.device, each.round) for each in rows}

    def close(self) -> None:
        """The leader closes its round with what it has read, if that was all; it reads again if not."""
        if self.read is None:
            return
        row, keys = self.read
        self.read = None
        closed = ClosedRound("run", row.round, row.receipts, b"summary", b"state", "running")
        if self.random.random() < 0.03:  # another process takes the lead: this one is too late
            late, self.leader = self.leader, self.new_leader()
            self.takeovers += 1
            with pytest.raises(LeaseLost):
                late.close_round(closed)
            late.close()
        elif self.leader.close_round(closed):
            self.counted[row.round] = keys
            self.open_next()

    def reject(self) -> None:
        """The leader finds that its disk has lost an update of the open round."""
        key = self.random.choice(DEVICES), self.open
        if key in self.receipts and self.random.random() < 0.1:
            self.leader.reject(self.receipts[key].refused("malformed", "lost"))
            stored = self.leader.update("run", self.open, key[0])
            assert stored is not None and stored.rejected == "malformed"
            self.receipts[key] = stored

    def lost(self) -> list[Key]:
        """The accepted updates that the closed rounds have not counted exactly once, in their place."""
        wrong: list[Key] = []
        for key, row in self.receipts.items():
            places = [number for number in self.places(key) if key in self.counted[number]]
            due = [number for number in (row.late or row.round,) if number in self.counted]
            if places != ([] if row.rejected else due):
                wrong.append(key)
        return wrong

    def places(self, key: Key) -> list[int]:
        """The closed rounds in which an update might count."""
        return [n for n in range(key[1], key[1] + LATE_ROUNDS + 2) if n in self.counted]


def test_every_update_counts_once_however_the_steps_interleave(tmp_path: Path, engine: str) -> None:
    race, steps = Race(tmp_path, seed=1), STEPS[engine]
    race.play(steps)
    assert race.lost() == []
    rows = race.receipts.values()
    late = [row for row in rows if row.late]
    assert len(late) > steps / 50 and len(race.counted) > 0.03 * steps
    assert race.takeovers > steps / 1000 and sum(row.rejected == "stale" for row in rows)
    for (device, number), row in race.receipts.items():
        assert race.leader.update("run", number, device) == row  # repeats get the same answer


@on_servers
def test_two_ingests_with_receipts_of_two_runs_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is stopped after its first receipt until the other has one, or is waiting for a lock."""
    leader, *ingests = (open_store(tmp_path) for _ in range(3))
    for name in ("one", "two"):
        leader.add_run(msgspec.structs.replace(RUN, run=name))
        leader.open_round(RoundRow(name, 1, "train", True, b"", b"", None), [])
    both = Barrier(2)
    count = Store.update

    def update(store: Store, run: str, number: int, device: str) -> UpdateRow | None:
        with suppress(BrokenBarrierError):  # the other one waits for the lock
            both.wait(0.5)
        return count(store, run, number, device)

    monkeypatch.setattr(Store, "update", update)
    arrived = [
        [(UpdateRow(run, 1, device, bytes(32), b"report", 1, 0), None, b"") for run in runs]
        for device, runs in (("a", ("one", "two")), ("b", ("two", "one")))
    ]
    with ThreadPoolExecutor(2) as pool:
        stored = [
            pool.submit(store.commit_receipts, each)
            for store, each in zip(ingests, arrived, strict=True)
        ]
        for future, each in zip(stored, arrived, strict=True):
            assert future.result() == [row for row, *_ in each]
