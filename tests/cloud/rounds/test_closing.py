"""Closing a round: in one commit, and again if another process has received an update meanwhile."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, FLEET, RUN, Cloud, small_update
from tests.fleet import Crash, failing

from sedge_cloud.coordinator import Coordinator
from sedge_cloud.rounds import closing
from sedge_cloud.rounds.accounts import read_sums
from sedge_cloud.rounds.summary import summarise
from sedge_cloud.runs.run import Run
from sedge_cloud.store.records import Summary
from sedge_cloud.store.rows import UpdateRow
from sedge_protocol.errors import StrategyError
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.transfer import describe


def interrupted(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[int]:
    """Something happens once while a round is summed up. Returns a list that grows with each summing."""
    times: list[int] = []

    def meanwhile(*args: object) -> Summary:
        times.append(1)
        if len(times) == 1:
            act()
        return summarise(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(closing, "summarise", meanwhile)
    return times


def offer(cloud: Cloud) -> None:
    """The devices say hello, and a and b send their updates."""
    cloud.hello()
    for name in "ab":
        cloud.offer(name, small_update(cloud.order(name), seed=3))


def test_updates_of_others_meanwhile_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of c, and that d declines."""
    cloud = Cloud(tmp_path, CONFIG, devices=("a", "b", "c", "d"))
    offer(cloud)
    (sample,) = (row for row in cloud.store.received(RUN, 1).counted if row.device == "a")
    other, blob = cloud.second_store(), small_update(cloud.order("c"), seed=9)

    def receive() -> None:
        row = UpdateRow(RUN, 1, "c", describe(blob).sha256, sample.report, len(blob), 0)
        assert other.commit_receipt(row, None, blob).late == 0
        other.decline(RUN, 1, "d", "busy: elsewhere")

    times = interrupted(monkeypatch, receive)
    cloud.poll(CONFIG.deadline_s + 1)
    (summary,) = cloud.summaries()
    assert [device.device for device in summary.devices] == ["a", "b", "c"]
    assert (len(times), summary.declined) == (2, 1)
    assert other.commit_receipt(UpdateRow(RUN, 1, "e", b"e" * 32, b"", 1, 0)).late == 2


def test_what_a_round_adds_up_to_is_in_the_commit_that_closes_it(cloud: Cloud) -> None:
    """A process that dies right after it leaves nothing to be made good."""
    offer(cloud)
    with failing(closing, "_move_on", Crash()), pytest.raises(Crash):
        cloud.poll()
    assert read_sums(cloud.store.sums(RUN)).closed == 1
    assert {row.device for row in cloud.store.histories(-1, 3)} == {"a", "b"}
    (row,) = cloud.store.rounds(RUN)
    assert row.parts and not row.open


def test_a_round_that_another_leader_closes_meanwhile_is_closed_once(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a process has not noticed yet that it leads no longer."""
    offer(cloud)
    other = Coordinator(FLEET, cloud.second_store(), 1.0, 1)
    other.load(cloud.now)
    times = interrupted(monkeypatch, lambda: other.poll(cloud.now, 64))
    cloud.poll()
    assert len(times) == 2 and read_sums(cloud.store.sums(RUN)).closed == 1
    assert [(row.round, row.open) for row in cloud.store.rounds(RUN)] == [(1, False), (2, True)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"quantile": 0.9}, []),
        ({"quantile": 0.9, "holdout": 0.5}, []),  # no device chooses its patch
        ({"quantile": 1.0}, [2]),
    ],
)
def test_no_personal_elements_are_news_once_devices_that_have_trained_return(
    options: dict[str, float], expected: list[int], tmp_path: Path
) -> None:
    """As they all do in round 2; those of round 3 have only evaluated before."""
    config = msgspec.structs.replace(
        CONFIG, strategy="fedobp", options=options, num_rounds=3, min_updates=1,
        fraction_train=0.25, evaluate_every=1,
    )  # fmt: skip
    cloud = Cloud(tmp_path, config, devices=tuple("abcdefgh"))
    cloud.hello(codecs=("choice",))
    trained: list[set[str]] = []
    while RUN in cloud.core.open:
        current = cloud.core.open[RUN]
        trained += [set(current.orders)] * (current.row.task == TRAIN)
        for place, name in enumerate(current.orders):
            order = cloud.order(name)
            chosen = None if order.work.choice is None else False
            cloud.offer(name, small_update(order, 10 * place, patched=chosen))
        cloud.poll()
    assert trained[0].isdisjoint(trained[1])
    assert [s.round for s in cloud.summaries() if s.remarks] == expected


def test_a_strategy_whose_remarks_fail_goes_on(cloud: Cloud) -> None:
    cloud.hello()
    with failing(Run, "remarks", StrategyError("remarks: a user's own code")):
        cloud.answer("a", "b")
    summary = cloud.summaries()[0]
    assert not summary.failure and not summary.remarks
