"""Rounds: who is drawn, when one closes, what it leaves, and how a run ends."""

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.helper import (
    CONFIG,
    LAYOUT,
    RUN,
    TRUSTING,
    Cloud,
    a_hello,
    began,
    random_theta,
    report_for,
    small_update,
)
from tests.cloud.stores import on_both

from sedge_cloud.coding import BroadcastConfig
from sedge_cloud.config import RunConfig
from sedge_cloud.events import RoundOpened, RunEnded, UpdateReceived
from sedge_cloud.outage import RETURN_S, return_s
from sedge_cloud.rounds.cohort import draw_cohort, next_round
from sedge_cloud.rounds.lifecycle import ROUND, OpenRound, Phase, Trigger, next_state
from sedge_cloud.rounds.lifecycle import RUN as RUN_TABLE
from sedge_cloud.runs.run import Run, order_seed
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.errors import LocalError
from sedge_protocol.wire.messages import Cancel, Committed, Decline, Goodbye, Order, Reject
from sedge_protocol.wire.reconnect import HELLOS_A_SECOND
from sedge_protocol.wire.update import Metrics, encode_update

NAMES = [f"d{i:02}" for i in range(40)]


def with_config(run: Run, **values: object) -> Run:
    run.config = msgspec.structs.replace(CONFIG, **values)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is only looked at."""
    return Cloud(tmp_path_factory.mktemp("rounds")).core.runs[RUN]


@pytest.mark.parametrize(
    ("config", "online", "task", "size"),
    [
        ({}, 40, "train", 40),
        ({"fraction_train": 0.1}, 40, "train", 4),
        ({"fraction_train": 0.1}, 10, "train", 2),
        ({"fraction_train": 0.001, "min_train_devices": 7, "min_available_devices": 7}, 40, "train", 7),
        ({"min_available_devices": 40}, 40, "train", 40),
        ({"fraction_train": 0.1}, 40, "evaluate", 40),
        ({"fraction_evaluate": 0.25}, 40, "evaluate", 10),
        ({"fraction_evaluate": 0.25}, 40, "train", 40),
        ({"fraction_evaluate": 1e-9}, 40, "evaluate", 1),
        ({"fraction_evaluate": 0.1, "min_updates": 6, "min_available_devices": 6}, 40, "evaluate", 6),
        ({}, 0, "train", 0),
        ({}, 1, "train", 1),
        ({"min_train_devices": 30, "min_available_devices": 2}, 5, "train", 5),
    ],
)  # fmt: skip
def test_the_size_of_a_cohort(
    run: Run, config: dict[str, object], online: int, task: str, size: int
) -> None:
    with_config(run, **config)
    assert len(draw_cohort(run, 1, task, NAMES[:online])) == size


@pytest.mark.parametrize(
    ("num_rounds", "every", "tasks"),
    [(4, 0, "TTTTE"), (4, 2, "TTETTE"), (5, 2, "TTETTETE"), (3, 1, "TETETE"), (3, 9, "TTTE")],
)
def test_measuring_in_between(run: Run, num_rounds: int, every: int, tasks: str) -> None:
    with_config(run, num_rounds=num_rounds, evaluate_every=every, evaluate=True)
    run.state = msgspec.structs.replace(run.state, round=0)
    found: list[tuple[int, str]] = []
    while (coming := next_round(run)) is not None:
        found.append(coming)
        run.state = msgspec.structs.replace(run.state, round=coming[0])
    names = {"T": "train", "E": "evaluate"}
    assert found == [(number, names[task]) for number, task in enumerate(tasks, start=1)]
    assert run.config.total_rounds == len(tasks)
    counts = [run.config.training_rounds(number) for number in range(len(tasks) + 1)]
    assert counts == [tasks[:number].count("T") for number in range(len(tasks) + 1)]
    for off in ({"evaluate": False}, {"fraction_evaluate": 0.0}):
        with_config(run, num_rounds=num_rounds, **off)
        run.state = msgspec.structs.replace(run.state, round=num_rounds)
        assert next_round(run) is None


def test_seeds_are_pinned(run: Run) -> None:
    """Another seed would train another model out of the same run file."""
    assert order_seed(42, 1, "pi-1") == 7623947232365413884
    seeds = {order_seed(s, n, d) for s in range(5) for n in range(1, 30) for d in NAMES}
    assert len(seeds) == 5 * 29 * len(NAMES) and all(0 <= seed < 2**63 for seed in seeds)


def an_open_round(size: int, settled: int, received: int) -> OpenRound:
    """A round of ``size`` devices with its deadline at 100."""
    names = [f"d{i}" for i in range(size)]
    asked = {name: OrderRow(RUN, 1, name, b"", b"", b"") for name in names}
    row = RoundRow(RUN, 1, "train", True, b"", b"", None)
    return OpenRound(row, asked, set(names[:settled]), set(names[:received]), deadline=100.0)


@pytest.mark.parametrize(
    ("config", "size", "settled", "received", "now", "expected"),
    [
        ({}, 3, 2, 2, 99.0, False),
        ({}, 3, 3, 3, 0.0, True),
        ({}, 3, 3, 0, 0.0, True),  # all have answered, nobody with an update: it closes, and fails
        ({"quorum": 0.5}, 3, 1, 1, 0.0, False),
        ({"quorum": 0.5}, 3, 2, 2, 0.0, True),
        ({"quorum": 0.5}, 3, 2, 1, 0.0, False),  # declining is no update
        ({"quorum": 0.07}, 100, 6, 6, 0.0, False),
        ({"quorum": 0.07}, 100, 7, 7, 0.0, True),  # .07 * 100 in binary is above 7
        ({"quorum": 0.55}, 100, 55, 55, 0.0, True),  # so is .55 * 100 above 55
        ({"quorum": 1e-9}, 3, 0, 0, 0.0, False),
        ({"quorum": 0.1, "min_updates": 3}, 10, 2, 2, 0.0, False),
        ({"quorum": 0.1, "min_updates": 3}, 10, 3, 3, 0.0, True),
        ({}, 3, 1, 1, 100.0, True),
        ({}, 3, 1, 0, 100.0, False),
        ({"min_updates": 2}, 3, 2, 1, 100.0, False),
        ({"min_updates": 2}, 3, 2, 2, 100.0, True),
    ],
)
def test_when_a_round_closes(
    run: Run,
    config: dict[str, object],
    size: int,
    settled: int,
    received: int,
    now: float,
    expected: bool,
) -> None:
    with_config(run, **config)
    current = an_open_round(size, settled, received)
    while current.phase is not Phase.CLOSED and (event := current.due(run.config, now)):
        if event is Trigger.SHORTAGE:
            break
        current.enter(event, run.config, now)
    assert (current.phase is Phase.CLOSED) is expected


def replaced(**values: object) -> RunConfig:
    return msgspec.structs.replace(CONFIG, **values)


def reasons(cloud: Cloud) -> list[str]:
    """What closed each round, as operators read it."""
    return [row.why for row in cloud.store.rounds(RUN) if not row.open]


def test_what_a_round_came_to(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abc", robust=TRUSTING)
    for name, (examples, before, after) in {"a": (9, 0.2, 0.4), "b": (3, 0.4, 0.8)}.items():
        first, last = (Metrics(0.5, metric, 10) for metric in (before, after))
        report = report_for(cloud.order(name), num_examples=examples, train_loss=float(examples))
        report = msgspec.structs.replace(report, before=first, after=last)
        values = np.array([float(examples)], np.float32)
        vector = encode(SparseVector(LAYOUT.size, np.array([5], np.uint32), values))
        cloud.offer(name, encode_update(report, vector))
    cloud.say("c", Decline(RUN, 1, "DataError", "no data"))
    cloud.poll()
    (summary,) = cloud.summaries()
    assert (summary.cohort, summary.declined, summary.failure) == (3, 1, "")
    assert [d.device for d in summary.devices] == ["a", "b"]
    assert summary.before == pytest.approx(0.3) and summary.after == pytest.approx(0.6)
    assert summary.train_loss == 6.0
    assert summary.update_bytes == sum(device.update_bytes for device in summary.devices) > 100
    # Weighted by num_examples: (9 * 9 + 3 * 3) / 12.
    moved = cloud.model(cloud.state().model) - random_theta(1)
    assert moved[5] == pytest.approx(7.5) and np.count_nonzero(moved) == 1


def test_the_largest_floats_as_losses(tmp_path: Path) -> None:
    """Three would add up to more than there are numbers."""
    cloud = began(tmp_path, "abc")
    vector = SparseVector(LAYOUT.size, np.array([5], np.uint32), np.ones(1, np.float32))
    for name in cloud.devices:
        report = report_for(cloud.order(name), train_loss=sys.float_info.max)
        (answer,) = cloud.offer(name, encode_update(report, encode(vector)))
        assert isinstance(answer, Reject)
    cloud.poll()
    (summary,) = cloud.summaries()
    assert summary.failure.startswith("0 of 3 devices")


@on_both
def test_the_quorum_closes_a_round_and_late_updates_refresh_client_models(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abc", quorum=0.6)
    late_order = cloud.order("c")
    cloud.answer("a", "b")
    assert [summary.round for summary in cloud.summaries()] == [1]
    assert reasons(cloud) == [Trigger.QUORUM]
    after_round_1 = cloud.state()
    blob = small_update(late_order, seed=77)
    sha256 = hashlib.sha256(blob).digest()
    assert cloud.offer("c", blob, order=late_order) == [Committed(RUN, 1, sha256, late=True)]
    assert [event.late for event in cloud.events(UpdateReceived)] == [False, False, True]
    assert cloud.core.counters["late"] == 1
    known = cloud.store.client_model(RUN, "c")
    assert known is not None and (known.round, known.blob) == (1, sha256)
    assert cloud.state() == after_round_1 and len(cloud.store.received(RUN, 1).counted) == 2
    # It does not count as an answer to the open round.
    assert cloud.core.open[RUN].row.round == 2 and cloud.core.open[RUN].waiting_for("c")
    # After a newer one it is a receipt and nothing more.
    cloud.answer("c")
    assert cloud.store.client_model(RUN, "c") != known


def test_a_deadline_without_enough_updates_is_extended(tmp_path: Path) -> None:
    cloud = began(tmp_path, deadline_s=100.0, min_updates=2)
    cloud.answer("a")
    asked = len(cloud.messages("b", Order))
    for number in (1, 2):
        cloud.poll(50.0)
        cloud.poll(50.0)
        assert not cloud.summaries() and cloud.core.counters["extended"] == number
        assert cloud.core.open[RUN].ends_at == cloud.now + 100.0
    assert len(cloud.messages("b", Order)) > asked
    assert len(cloud.messages("a", Order)) == 1  # who has answered is left alone
    assert "fewer than 2 updates at the deadline; extended" in cloud.notes(logging.WARNING)[-1]
    cloud.answer("b")
    assert len(cloud.summaries()) == 1


def offline(cloud: Cloud, *names: str) -> None:
    for name in names:
        cloud.say(name, Goodbye(a_hello(name).nonce))
    cloud.poll()


def test_those_who_are_offline_have_a_grace_of_their_own(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abc", deadline_s=1000.0)
    cloud.poll(30.0)
    offline(cloud, "c")
    cloud.answer("a")
    assert cloud.core.open[RUN].phase is Phase.OPEN  # b is at work
    cloud.answer("b")
    current = cloud.core.open[RUN]
    assert current.phase is Phase.OFFLINE and cloud.core.timer() == cloud.now + 10.0
    cloud.poll(5.0)
    cloud.hello("c")
    assert current.phase.value == "open" and current.ends_at == 2000.0
    offline(cloud, "c")
    assert current.phase.value == "offline"
    cloud.poll(9.9)
    assert not cloud.summaries()
    cloud.poll(0.1)
    assert reasons(cloud) == [Trigger.ALONE]


def test_who_may_be_coming_back_is_waited_for(tmp_path: Path) -> None:
    """After an outage the first round is drawn with those that were online before it."""
    cloud = began(tmp_path, "abc", deadline_s=1000.0)
    cloud.answer("a", "b", "c")
    cloud.core.disconnected(cloud.now)
    cloud.now += 180.0
    cloud._keep(cloud.core.connected(cloud.now), "")
    current = cloud.core.open[RUN]
    cloud.hello("a", "b")
    cloud.answer("a", "b")
    assert current.phase is Phase.OPEN and cloud.core.timer() == cloud.now + 10.0
    cloud.poll(10.0)
    assert current.phase.value == "offline"  # now c is
    cloud.core.disconnected(cloud.now)
    cloud._keep(cloud.core.connected(cloud.now), "")
    cloud.poll(10.0)
    assert len(cloud.summaries()) == 2
    opened = len(cloud.events(RoundOpened))
    cloud.hello("a")
    cloud.hello("b")
    assert len(cloud.events(RoundOpened)) == opened + 1  # not before its time was over


def decline(cloud: Cloud, *names: str) -> None:
    """These devices cannot do their order."""
    for name in names:
        cloud.say(name, Decline(RUN, cloud.order(name).round, "DataError", "x has wrong rows"))
    cloud.poll()


def spoil(cloud: Cloud, *names: str) -> None:
    """These devices send updates of another run."""
    for name in names:
        order = cloud.order(name)
        report = report_for(order, run="other")
        (answer,) = cloud.offer(name, encode_update(report, b""))
        assert isinstance(answer, Reject)
    cloud.poll()


Act = Callable[..., None]


@on_both
@pytest.mark.parametrize(
    ("min_updates", "acts", "counts"),
    [
        (1, [decline, decline], (0, 2, 2, 0)),
        (1, [spoil, decline], (0, 2, 1, 1)),
        (2, [Cloud.answer, spoil], (1, 2, 0, 1)),
    ],
)
def test_a_round_that_settles_with_too_few_updates_ends_the_run(
    tmp_path: Path, min_updates: int, acts: Sequence[Act], counts: tuple[int, int, int, int]
) -> None:
    cloud = Cloud(tmp_path, replaced(min_updates=min_updates, num_rounds=100))
    before = cloud.state()
    cloud.hello()
    for name, act in zip("ab", acts, strict=True):
        act(cloud, name)
    sent, size, declined, rejected = counts
    why = (
        f"{sent} of {size} devices sent an update that counts, expected min_updates = {min_updates}; "
        f"{declined} declined, {rejected} rejected"
    )
    if declined:
        why += f"; most declined because 'DataError: x has wrong rows' ({declined} of {declined})"
    assert cloud.run_row().status == "failed" and cloud.state() == before
    (summary,) = cloud.summaries()
    assert (summary.failure, len(summary.devices), summary.declined) == (why, sent, declined)
    assert cloud.events(RunEnded) == [RunEnded(RUN, "failed")]
    assert cloud.notes(logging.ERROR) == [f"run run has failed in round 1: {why}"]
    cloud.poll(1e6)
    cloud.come_back()
    assert len(cloud.events(RoundOpened)) == 1 and cloud.core.open == {}


def test_a_global_that_cannot_be_coded_fails_the_run(tmp_path: Path) -> None:
    """One device's finite but huge numbers must not stop the coordinator, now or after a restart."""
    config = replaced(broadcast=BroadcastConfig(ValueCoding.FP16, 1.0))
    cloud = Cloud(tmp_path, config)
    before = cloud.state()
    cloud.hello()
    huge = np.full(1, 1e6, np.float32)  # fp16 ends at 65,504
    vector = encode(SparseVector(LAYOUT.size, np.array([3], np.uint32), huge))
    cloud.offer("a", encode_update(report_for(cloud.order("a")), vector))
    cloud.answer("b")
    assert cloud.run_row().status == "failed" and cloud.state() == before
    (summary,) = cloud.summaries()
    assert summary.failure.startswith("the next global model cannot be created: ")
    assert len(summary.devices) == 2


@on_both
def test_declining_twice_or_after_an_update_changes_nothing(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abc")
    cloud.answer("a")
    cloud.say("a", Decline(RUN, 1, "DataError", "after all"))
    cloud.say("b", Decline(RUN, 1, "DataError", "first"))
    cloud.say("b", Decline(RUN, 1, "DataError", "second"))
    cloud.say("c", Decline(RUN, 2, "DataError", "a round that is not open"))
    cloud.say("c", Decline("other", 1, "DataError", "a run that is not there"))
    declined = {order.device: order.declined for order in cloud.store.orders(RUN, 1)}
    assert declined == {"a": "", "b": "DataError: first", "c": ""}
    assert cloud.core.open[RUN].settled == {"a", "b"}


@on_both
def test_an_update_after_declining_still_counts(cloud: Cloud) -> None:
    """The device found its data again, and the order had been sent once more."""
    cloud.hello()
    cloud.say("a", Decline(RUN, 1, "DataError", "no data"))
    (answer,) = cloud.offer("a", small_update(cloud.order("a")))
    assert isinstance(answer, Committed)
    cloud.answer("b")
    (summary,) = cloud.summaries()
    assert [device.device for device in summary.devices] == ["a", "b"] and summary.declined == 0


@on_both
def test_stopping_in_mid_round_cancels_the_orders(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abc")
    cloud.answer("a")
    before = cloud.state()
    cloud.second_store().set_status(RUN, "stopped")
    cloud.load()
    assert cloud.events(RunEnded) == [RunEnded(RUN, "stopped")]
    assert cloud.messages("a", Cancel) == []
    for name in "bc":
        assert cloud.messages(name, Cancel) == [Cancel(RUN, 0, "the run was stopped")]
    cloud.poll(1e6)
    assert cloud.core.open == {} and not cloud.summaries() and cloud.state() == before
    # An update that was on its way gets its receipt, so that the device can forget it.
    orders = {name: cloud.order(name) for name in "bc"}
    for name, order in orders.items():
        (answer,) = cloud.offer(name, small_update(order), order=order)
        assert isinstance(answer, Committed)
        cloud.come_back()
        assert cloud.core.open == {} and cloud.run_row().status == "stopped"


@on_both
def test_a_round_that_closes_as_the_operator_stops_the_run(cloud: Cloud) -> None:
    cloud.hello()
    for name in "ab":
        cloud.offer(name, small_update(cloud.order(name)))
    cloud.store.set_status(RUN, "stopped")  # our own commit: not noticed before the round closes
    cloud.poll()
    assert cloud.run_row().status == "stopped" and len(cloud.summaries()) == 1


def test_a_large_fleet_that_spreads_its_answers_to_hints_is_waited_for() -> None:
    assert return_s(away_s=0.0, devices=100_000) > 100_000 / HELLOS_A_SECOND
    assert return_s(away_s=0.0, devices=1000) == RETURN_S


@on_both
@pytest.mark.parametrize(("away_s", "left_s"), [(20.0, 80.0), (90.0, RETURN_S), (1e6, RETURN_S)])
def test_a_restart_finds_the_round_as_it_was(tmp_path: Path, away_s: float, left_s: float) -> None:
    cloud = began(tmp_path, "abcd", deadline_s=100.0)
    cloud.answer("a")
    spoil(cloud, "b")
    cloud.say("c", Decline(RUN, 1, "DataError", "no data"))
    before = cloud.core.open[RUN]
    cloud.now += away_s
    cloud.restart()
    after = cloud.core.open[RUN]
    assert after.row == msgspec.structs.replace(before.row, receipts=3)  # with the decline
    assert after.orders == before.orders
    assert after.settled == before.settled == {"a", "b", "c"}
    assert after.received == before.received == {"a"}
    assert after.deadline == cloud.now + left_s
    cloud.hello("d")
    cloud.answer("d")
    assert [device.device for device in cloud.summaries()[0].devices] == ["a", "d"]


@pytest.mark.parametrize("in_grace", [False, True])
def test_a_clock_that_was_set_back_keeps_no_round_open(tmp_path: Path, in_grace: bool) -> None:
    cloud = began(tmp_path, deadline_s=100.0, grace_s=20.0, quorum=0.5 if in_grace else 1.0)
    cloud.answer("a")
    current = cloud.core.open[RUN]
    ends_at = cloud.wall(cloud.now) + 20.0
    row = msgspec.structs.replace(current.row, phase=current.phase, ends_at=ends_at)
    cloud.store.save_observations([], [row], cloud.store.coordinator())  # as the recorder does

    def years_behind(now: float) -> float:
        return now - 1e8

    cloud.wall = years_behind
    cloud.restart()
    assert cloud.core.open[RUN].phase == (Phase.GRACE if in_grace else Phase.OPEN)
    assert cloud.core.open[RUN].deadline - cloud.now == (RETURN_S if in_grace else 100.0)


@pytest.mark.parametrize(
    ("table", "state"),
    [*((RUN_TABLE, state) for state in RUN_TABLE), *((ROUND, state) for state in ROUND)],
)
def test_an_event_that_a_state_does_not_have_raises(
    table: Mapping[str, Mapping[Trigger, str]], state: str
) -> None:
    for event in Trigger:
        if event in table[state]:
            assert next_state(table, state, event) in table
            continue
        with pytest.raises(LocalError, match=f"{state!r}: found the event .*, expected "):
            next_state(table, state, event)


def test_a_round_closes_a_grace_period_after_the_quorum(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abcd", quorum=0.5, grace_s=30.0, deadline_s=100.0, num_rounds=4)
    cloud.answer("a", "b")
    cloud.poll(29.0)
    assert not cloud.summaries() and cloud.core.timer() == pytest.approx(cloud.now + 1.0)
    cloud.answer("c")
    cloud.poll(1.0)  # d has not answered
    cloud.answer("a", "b", "c", "d")  # nobody is left to wait for
    cloud.poll(90.0)
    cloud.answer("a", "b")
    cloud.poll(9.0)
    assert len(cloud.summaries()) == 2
    cloud.poll(1.0)  # the deadline holds in the grace period, too
    assert [len(summary.devices) for summary in cloud.summaries()] == [3, 4, 2]
    assert reasons(cloud) == [Trigger.QUORUM, Trigger.EVERYONE, Trigger.QUORUM]


def test_a_grace_period_without_updates_is_over() -> None:
    """The updates that made the quorum may be lost by the disk, while others are waited for."""
    current = an_open_round(3, 1, 1)
    config = replaced(quorum=0.1, grace_s=10.0, deadline_s=50.0)
    current.enter(Trigger.QUORUM, config, 20.0)
    assert (current.phase, current.due(config, 29.0)) == (Phase.GRACE, None)
    current.received.clear()
    assert current.due(config, 30.0) is Trigger.SHORTAGE
    current.enter(Trigger.SHORTAGE, config, 30.0)
    assert (current.phase, current.ends_at) == (Phase.OPEN, 80.0)


@on_both
@pytest.mark.parametrize("counts", [False, True])
def test_late_updates_count_in_the_next_round_if_they_shall(tmp_path: Path, counts: bool) -> None:
    choice = "count" if counts else "remember"
    config = replaced(quorum=0.6, late_updates=choice, num_rounds=3, evaluate_every=1)
    cloud = began(tmp_path, "abc", config, robust=TRUSTING)
    first = {name: cloud.order(name) for name in "abc"}
    cloud.answer("a", "b")
    # while a round of evaluation is open
    cloud.offer("c", small_update(first["c"], seed=100), order=first["c"])
    before = cloud.model(cloud.state().model)
    cloud.answer("a", "b", "c")
    cloud.answer("a", "b")  # the second round of training
    step = cloud.model(cloud.state().model) - before
    moved = np.flatnonzero(step)
    assert np.array_equal(moved >= 100, [False] * 10 + [True] * 10 if counts else [False] * 10)
    # each moved its ten elements by .5; c's differ from the others'
    expected = 0.5 * np.array([2 / 3] * 10 + [1 / 3] * 10 if counts else [1.0] * 10)
    assert np.allclose(step[moved], expected, atol=1e-6)
    assert [summary.late for summary in cloud.summaries()] == [(), (), ("c",) if counts else ()]
    # with an update of its own, c's late one for round 3 does not count in round 5
    third = cloud.messages("c", Order)[-2]
    cloud.answer("a", "b", "c")
    cloud.offer("c", small_update(third, seed=200), order=third)
    cloud.answer("c", "a", "b")
    assert cloud.summaries()[-1].late == ()
