"""What [keep] deletes, by hand, at the start and with the rounds; never what is still of use."""

import os
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.cloud.admin.test_backup import rows
from tests.cloud.helper import CONFIG, RUN, Cloud, make_bundle, random_theta, small_update, update
from tests.cloud.killed import kills
from tests.cloud.stores import in_a_folder, open_store

from sedge_cloud.admin.runs import delete_run, start_run
from sedge_cloud.config import KeepConfig, RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.rounds.lifecycle import FAILED, FINISHED, RUNNING, STOPPED
from sedge_cloud.runs import garbage as garbage_of
from sedge_cloud.runs.garbage import Garbage, Pruned
from sedge_cloud.store.rows import CoordinatorRow, DiskRow
from sedge_protocol.wire.messages import Cancel, Committed, Order, Reject


def with_runs(folder: Path, *statuses: str) -> Cloud:
    """A coordinator with runs r0, r1, … of these statuses, each of whose first models is its own."""
    cloud = Cloud(folder, config=None)
    for number, status in enumerate(statuses):
        bundle = make_bundle(folder / str(number), init=random_theta(number))
        start_run(cloud.store, f"r{number}", bundle, CONFIG)
        if status != RUNNING:
            cloud.store.set_status(f"r{number}", status)
    return cloud


def left(cloud: Cloud) -> str:
    return " ".join(row.run for row in cloud.store.runs())


@in_a_folder
@pytest.mark.parametrize(
    ("statuses", "keep", "gone"),
    [
        ((FINISHED, STOPPED, FAILED, FINISHED), KeepConfig(), ()),
        ((FINISHED, STOPPED, FAILED, FINISHED), KeepConfig(runs=2), ("r0", "r1")),
        ((FINISHED, RUNNING, STOPPED, RUNNING), KeepConfig(runs=1), ("r2",)),
        ((FINISHED, STOPPED, STOPPED), KeepConfig(runs=1), ("r1", "r2")),
        ((STOPPED, RUNNING, STOPPED), KeepConfig(gigabytes=1e-6), ("r0", "r2")),
        ((STOPPED, FINISHED, STOPPED), KeepConfig(gigabytes=1.0), ()),
    ],
)
def test_which_runs_go(
    tmp_path: Path, statuses: tuple[str, ...], keep: KeepConfig, gone: tuple[str, ...]
) -> None:
    """The oldest ended ones, but not the newest finished: newcomers get its model."""
    cloud = with_runs(tmp_path, *statuses)
    before, garbage = rows(tmp_path / "state"), Garbage(cloud.store, keep)
    assert garbage.prune(dry_run=True) == Pruned(gone, 0)
    assert rows(tmp_path / "state") == before
    assert garbage.prune() == Pruned(gone, 0)
    assert set(left(cloud).split()) == {f"r{n}" for n in range(len(statuses))} - set(gone)


def test_gigabytes_delete_as_few_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction waits for the list of all objects: a server ends one that is idle for long."""
    cloud = with_runs(tmp_path, STOPPED, STOPPED, STOPPED)
    sizes = cloud.store.blobs.sizes

    def listed() -> dict[bytes, int]:
        assert not cloud.store._db.in_transaction
        return sizes()

    monkeypatch.setattr(cloud.store.blobs, "sizes", listed)
    used = Garbage(cloud.store).used_bytes(sizes()) + cloud.store.used_bytes()
    model = used - 2 * 30_000  # each run's first model takes more than that
    keep = KeepConfig(gigabytes=model / 1e9)
    found = Garbage(cloud.store, keep).prune()
    assert found.runs == ("r0", "r1")
    assert Garbage(cloud.store).used_bytes(sizes()) + cloud.store.used_bytes() <= model
    assert delete_run(cloud.store, "r2") > 0


def test_old_rounds_keep_their_summaries_alone(tmp_path: Path) -> None:
    """What a late update needs is of recent rounds, and these stay whole."""
    config = RunConfig(strategy="fedavg", num_rounds=15, evaluate=False, broadcast=CONFIG.broadcast)
    cloud = Cloud(tmp_path, config)
    cloud.hello()
    for _ in range(14):
        cloud.answer("a", "b")
    late = cloud.order("a")
    cloud.answer("b")
    assert late.round == 15
    found = Garbage(cloud.store, KeepConfig(rounds=10)).prune()
    assert found == Pruned((), 4 * (2 + 2 + 2))
    assert [len(cloud.store.orders(RUN, n)) for n in (1, 4, 5, 14, 15)] == [0, 0, 2, 2, 2]
    assert len(cloud.summaries()) == 14 and len(cloud.store.rounds(RUN)) == 15
    cloud.come_back()
    cloud.answer("a")
    assert cloud.run_row().status == FINISHED
    (answer,) = cloud.offer("a", small_update(late, seed=1), order=late)
    assert isinstance(answer, Committed)


def used_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_six_runs_leave_the_space_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the disk, with all that their devices have sent."""
    monkeypatch.setattr(garbage_of, "ORPHAN_AGE_S", 0.0)
    cloud, left = Cloud(tmp_path, config=None), list[int]()
    cloud.store.shrink()
    empty = used_bytes(tmp_path / "state")
    for number in range(6):
        bundle = make_bundle(tmp_path / str(number), init=random_theta(number))
        config = msgspec.structs.replace(CONFIG, evaluate=False)
        start_run(cloud.store, f"r{number}", bundle, config)
        cloud.come_back()
        for round_ in range(2):
            for seed, name in enumerate("ab"):
                theta = random_theta(100 * number + 10 * round_ + seed)
                cloud.upload(name, update(cloud.order(name), theta))
            cloud.poll()
    for keep in (KeepConfig(), KeepConfig(runs=1)):
        Garbage(cloud.store, keep).collect()
        cloud.store.shrink()
        left.append(used_bytes(tmp_path / "state") - empty)
    assert left[1] < left[0] / 4


def test_the_service_prunes_when_it_starts(tmp_path: Path) -> None:
    cloud = with_runs(tmp_path, STOPPED, STOPPED, FINISHED)
    core = Coordinator(cloud.core.fleet, cloud.store, 1.0, 1, keep=KeepConfig(runs=1))
    core.load(cloud.now)
    assert left(cloud) == "r2"


def test_the_service_forgets_a_run_that_it_has_pruned(tmp_path: Path) -> None:
    """Its newcomer is asked no more; its update could not be stored, and would be sent for ever."""
    short = msgspec.structs.replace(CONFIG, num_rounds=1, evaluate=False)
    cloud = Cloud(tmp_path, short, "abc")
    cloud.core = Coordinator(cloud.core.fleet, cloud.store, 1.0, 1, keep=KeepConfig(runs=1))
    cloud.load()
    cloud.core.connected(cloud.now)
    cloud.hello("a", "b")
    cloud.answer("a", "b")
    cloud.hello("c")
    old = cloud.order("c")
    with closing(cloud.second_store()) as store:
        start_run(store, "later", cloud.bundle, short)
    cloud.load()
    cloud.hello()
    cloud.answer("a", "b")
    new = next(order for order in cloud.messages("c", Order) if order.run == "later")
    cloud.offer("c", small_update(new, seed=3), order=new)
    cloud.poll()
    cloud.core.garbage.collect()
    assert left(cloud) == "later"
    cloud.load()
    asked = len(cloud.messages("c", Order))
    cloud.hello("c")
    assert cloud.messages("c", Cancel) and len(cloud.messages("c", Order)) == asked
    (answer,) = cloud.offer("c", small_update(old), order=old)
    assert isinstance(answer, Reject) and answer.reason == "unknown-run"


@in_a_folder
def test_kill_at_each_step_of_deleting_and_pruning(tmp_path: Path) -> None:
    """There are all rows of a run or none, and every blob that a row names."""
    cloud = with_runs(tmp_path, STOPPED, STOPPED, FINISHED, RUNNING)
    for path in (tmp_path / "state" / "blobs").iterdir():
        os.utime(path, (1.0, 1.0))
    state, before = tmp_path / "state", rows(tmp_path / "state")
    cloud.store.close()

    def deletes() -> None:
        with closing(open_store(state)) as store:
            if store.runs()[0].run == "r0":
                delete_run(store, "r0")
            Garbage(store, KeepConfig(runs=1)).collect()
            store.shrink()

    found: list[int] = []
    for _ in kills(deletes):
        now = rows(state)
        assert now["runs"] in (before["runs"], before["runs"][1:], before["runs"][2:])
        found.append(len(now["runs"]))
    assert found[0] == 4 and found[-1] == 2 and found == sorted(found, reverse=True)


def test_sizes_of_the_state_are_kept_for_a_week(cloud: Cloud) -> None:
    for day in (0, 1, 2, 8.5):
        size = DiskRow(day * 86_400, 1)
        cloud.store.save_observations([], [], CoordinatorRow(), size)
    assert [size.at / 86_400 for size in cloud.store.disk()] == [2, 8.5]
