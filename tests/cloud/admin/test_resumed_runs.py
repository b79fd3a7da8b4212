"""Runs that go on after their end, and runs that are deleted, beside a coordinator that runs."""

import logging
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cloud.helper import CONFIG, RUN, Cloud, began, make_bundle, random_theta, small_update

from sedge_cloud.admin.runs import delete_run, resume_run, start_run, stop_run
from sedge_cloud.config import EarlierPart, RunConfig
from sedge_cloud.events import RunEnded
from sedge_cloud.facts.reader import Reader
from sedge_cloud.rounds import scheduler
from sedge_cloud.rounds.cohort import plan_cohort
from sedge_cloud.rounds.lifecycle import FINISHED, RUNNING
from sedge_cloud.rounds.plans import Planned
from sedge_cloud.runs import garbage as run_stores
from sedge_cloud.runs.run import Run
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Cancel, Committed, Order, Reject


def play(cloud: Cloud, rounds: int) -> list[tuple[int, str]]:
    """Let the devices answer so many rounds; number and task of every closed one."""
    for _ in range(rounds):
        cloud.answer(*cloud.devices)
    return [(summary.round, summary.task) for summary in cloud.summaries()]


def test_a_stopped_run_goes_on_in_mid_round(cloud: Cloud) -> None:
    """The update that it had counts, and the device that still owes one is asked again at once."""
    cloud.hello()
    cloud.offer("a", small_update(cloud.order("a")))
    stop_run(cloud.second_store(), RUN)
    cloud.notice()
    assert cloud.messages("b", Cancel)[-1].round == 0
    resume_run(cloud.second_store(), RUN)
    cloud.notice()
    assert len(cloud.messages("b", Order)) == 2 and len(cloud.messages("a", Order)) == 1
    cloud.answer("b")
    (summary,) = cloud.summaries()
    assert [device.device for device in summary.devices] == ["a", "b"]


def test_a_resumed_round_has_its_whole_time_again(cloud: Cloud) -> None:
    """The stop has cancelled its orders, so devices begin theirs anew."""
    cloud.hello()
    deadline_s = cloud.core.open[RUN].deadline - cloud.now
    stop_run(cloud.second_store(), RUN)
    cloud.notice()
    cloud.now += 2 * deadline_s
    resume_run(cloud.second_store(), RUN)
    cloud.notice()
    assert cloud.core.open[RUN].deadline == cloud.now + deadline_s


def test_a_finished_run_is_extended(cloud: Cloud) -> None:
    """With its evaluation, and one more at the new end; the learning rate follows the new plan."""
    cloud.hello()
    assert play(cloud, 3) == [(1, "train"), (2, "train"), (3, "evaluate")]
    assert cloud.run_row().status == FINISHED
    resume_run(cloud.second_store(), RUN, 4)
    cloud.notice()
    assert cloud.run_row().status == RUNNING
    assert play(cloud, 3)[3:] == [(4, "train"), (5, "train"), (6, "evaluate")]
    assert cloud.run_row().status == FINISHED
    resume_run(cloud.second_store(), RUN, 5)
    cloud.notice()
    assert play(cloud, 2)[6:] == [(7, "train"), (8, "evaluate")]


def test_a_failed_run_is_resumed_after_the_round_that_failed(tmp_path: Path) -> None:
    cloud = began(tmp_path, min_updates=2, evaluate=False)
    cloud.offer("a", b"x" * 100)
    cloud.answer("b")
    assert cloud.run_row().status == "failed"
    resume_run(cloud.second_store(), RUN)
    cloud.notice()
    assert [order.round for order in cloud.messages("a", Order)] == [1, 2]
    assert play(cloud, 2) == [(1, "train"), (2, "train"), (3, "train")]
    assert cloud.run_row().status == FINISHED and cloud.state().round == 3


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        (None, "--rounds: missing, expected more than the 2 training rounds"),
        (2, "--rounds: found 2, expected more than the 2"),
        (0, "--rounds: found 0"),
        (-1, "--rounds: found -1"),
    ],
)
def test_nothing_to_resume(cloud: Cloud, rounds: int | None, said: str) -> None:
    with pytest.raises(ConfigError, match=r"run: found 'run \(running\)', expected .* has ended"):
        resume_run(cloud.store, RUN, 9)
    cloud.hello()
    play(cloud, 3)
    before = cloud.run_row()
    with pytest.raises(ConfigError, match=said):
        resume_run(cloud.store, RUN, rounds)
    assert cloud.run_row() == before


@pytest.mark.parametrize(
    ("every", "evaluate", "earlier", "num_rounds", "expected"),
    [
        (0, True, (), 3, "TTTe"),
        (0, True, (EarlierPart(3, 3, 4),), 5, "TTTeTTe"),
        (0, True, (EarlierPart(3, 3, 4), EarlierPart(5, 5, 7)), 6, "TTTeTTeTe"),
        (2, True, (EarlierPart(3, 3, 5),), 6, "TTeTeTTeTe"),
        (0, False, (EarlierPart(2, 2, 3),), 4, "TTeTT"),  # the third was for newcomers
        (0, True, (EarlierPart(4, 1, 2),), 4, "TeTTTe"),  # the second failed
    ],
)
def test_the_rounds_of_an_extended_run(
    every: int, evaluate: bool, earlier: tuple[EarlierPart, ...], num_rounds: int, expected: str
) -> None:
    config = RunConfig(
        strategy="fedavg", num_rounds=num_rounds, evaluate=evaluate, evaluate_every=every, earlier=earlier
    )  # fmt: skip
    counts = [config.training_rounds(number) for number in range(config.total_rounds + 1)]
    assert "".join("T" if b > a else "e" for a, b in pairwise(counts)) == expected


def test_a_deleted_run_leaves_nothing(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the coordinator, which frees the space. Its name may come again."""
    monkeypatch.setattr(run_stores, "ORPHAN_AGE_S", 0.0)
    with pytest.raises(ConfigError, match=r"'run \(running\)', expected a run that has ended"):
        delete_run(cloud.store, RUN)
    start_run(cloud.store, "other", cloud.bundle, msgspec.structs.replace(CONFIG, seed=7))
    cloud.come_back()
    order = next(order for order in cloud.messages("a", Order) if order.run == RUN)
    stop_run(cloud.store, RUN)
    tables = {
        table: cloud.store._db.execute(f"SELECT * FROM {table} WHERE run = 'other'").fetchall()
        for table in ("runs", "rounds", "orders", "updates", "client_models", "traffic")
    }
    assert delete_run(cloud.store, RUN, dry_run=True) >= 0
    assert len(cloud.store.runs()) == 2
    delete_run(cloud.second_store(), RUN)
    cloud.notice()
    for table, rows in tables.items():
        found = cloud.store._db.execute(f"SELECT * FROM {table}").fetchall()
        assert found == rows, table
    named = cloud.core.garbage.named_blobs()
    assert {blob for blob in named if cloud.store.blobs.has(blob)} == named
    assert set(cloud.store.blobs.sizes()) == named
    (answer,) = cloud.offer("a", small_update(order), order=order)
    assert isinstance(answer, Reject) and answer.reason == "unknown-run"
    start_run(cloud.store, RUN, cloud.bundle, CONFIG)
    cloud.come_back()
    (answer,) = cloud.offer("a", small_update(cloud.order("a")))
    assert isinstance(answer, Committed)


def test_stopped_and_deleted_between_two_looks_of_the_service(cloud: Cloud) -> None:
    """What the coordinator is about to write for the run is refused: its rows would outlive it."""
    cloud.hello()
    stop_run(cloud.second_store(), RUN)
    delete_run(cloud.second_store(), RUN)
    cloud.answer("a", "b")
    assert any("run run: it is deleted" in note for note in cloud.notes(logging.ERROR))
    cloud.load()
    assert [event.status for event in cloud.events(RunEnded)] == ["deleted"]
    assert cloud.core.runs == {} and cloud.messages("a", Cancel)
    for table in ("rounds", "orders", "updates", "client_models", "traffic"):
        assert not cloud.store._db.execute(f"SELECT * FROM {table}").fetchall()


def test_deleted_and_begun_again_between_two_looks_of_the_service(cloud: Cloud) -> None:
    cloud.hello()
    cloud.answer("a", "b")
    assert cloud.order("a").round == 2
    with closing(cloud.second_store()) as store:
        stop_run(store, RUN)
        delete_run(store, RUN)
        start_run(store, RUN, cloud.bundle, CONFIG)
    cloud.notice()
    assert cloud.messages("a", Cancel) and cloud.order("a").round == 1
    cloud.answer("a", "b")
    assert cloud.state().round == 1


def test_deleted_and_begun_again_while_a_round_is_planned(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round is the old run's, with its model."""

    def replaced(run: Run, *given: Any) -> Planned:
        planned = plan_cohort(run, *given)
        if run.created == old.created:
            with closing(cloud.second_store()) as store:
                stop_run(store, RUN)
                delete_run(store, RUN)
                bundle = make_bundle(cloud.folder / "another", init=random_theta(5))
                start_run(store, RUN, bundle, CONFIG)
        return planned

    old = cloud.run_row()
    monkeypatch.setattr(scheduler, "plan_cohort", replaced)
    cloud.hello()
    cloud.notice()
    assert cloud.order("a").model_hash == cloud.state().model_hash


def test_what_was_done_for_a_deleted_run_counts_for_no_other_of_its_name(cloud: Cloud) -> None:
    cloud.hello()
    cloud.answer("a", "b")
    with closing(cloud.second_store()) as store:
        reader = Reader(cloud.core.fleet, store.folder, store)
        assert [device.updates for device in reader.read().devices] == [1, 1]
        stop_run(cloud.store, RUN)
        delete_run(cloud.store, RUN)
        start_run(cloud.store, RUN, cloud.bundle, CONFIG)
        assert [device.updates for device in reader.read().devices] == [0, 0]
