"""Closing a round: in one commit, and again if another process has received an update meanwhile."""

from pathlib import Path

import pytest
from tests.cloud.helper import CONFIG, FLEET, RUN, Cloud, small_update
from tests.cloud.stores import open_store
from tests.fleet import Crash

from sedge_cloud.coordinator import Coordinator
from sedge_cloud.rounds import closing
from sedge_cloud.rounds.accounts import read_sums
from sedge_cloud.rounds.summary import summarise
from sedge_cloud.runs.run import Run
from sedge_cloud.store.records import Summary
from sedge_cloud.store.rows import UpdateRow
from sedge_protocol.errors import StrategyError
from sedge_protocol.wire.transfer import describe


def test_an_update_that_another_process_receives_meanwhile_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = Cloud(tmp_path, CONFIG, devices=("a", "b", "c"))
    cloud.hello()
    for name in "ab":
        cloud.offer(name, small_update(cloud.order(name), seed=3))
    (sample,) = (row for row in cloud.store.updates(RUN, 1) if row.device == "a")
    other, times = open_store(tmp_path / "state"), 0

    def meanwhile(*args: object) -> Summary:
        nonlocal times
        times += 1
        if times == 1:
            blob = small_update(cloud.order("c"), seed=9)
            name = describe(blob).sha256
            row = UpdateRow(RUN, 1, "c", name, sample.report, len(blob), 0)
            assert other.commit_receipt(row, None, blob).late == 0
        return summarise(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(closing, "summarise", meanwhile)
    cloud.poll(CONFIG.deadline_s + 1)
    assert times == 2
    assert [device.device for device in cloud.summaries()[0].devices] == ["a", "b", "c"]
    assert other.commit_receipt(UpdateRow(RUN, 1, "d", b"d" * 32, b"", 1, 0)).late == 2


def test_what_a_round_adds_up_to_is_in_the_commit_that_closes_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies right after it leaves nothing to be made good."""
    cloud.hello()
    for name in "ab":
        cloud.offer(name, small_update(cloud.order(name)))

    def dies(*args: object) -> None:
        raise Crash

    monkeypatch.setattr(closing, "_move_on", dies)
    with pytest.raises(Crash):
        cloud.poll()
    assert read_sums(cloud.store.sums(RUN)).closed == 1
    assert {row.device for row in cloud.store.histories()} == {"a", "b"}
    (row,) = cloud.store.rounds(RUN)
    assert row.parts and not row.open


def test_a_decline_that_another_process_receives_meanwhile_is_in_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = Cloud(tmp_path, CONFIG, devices=("a", "b", "c"))
    cloud.hello()
    for name in "ab":
        cloud.offer(name, small_update(cloud.order(name)))
    other, times = open_store(tmp_path / "state"), 0

    def meanwhile(*args: object) -> Summary:
        nonlocal times
        times += 1
        if times == 1:
            other.decline(RUN, 1, "c", "busy: elsewhere")
        return summarise(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(closing, "summarise", meanwhile)
    cloud.poll(CONFIG.deadline_s + 1)
    assert times == 2 and cloud.summaries()[0].declined == 1


def test_a_round_that_another_leader_closes_meanwhile_is_closed_once(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a process has not noticed yet that it leads no longer."""
    cloud.hello()
    for name in "ab":
        cloud.offer(name, small_update(cloud.order(name)))
    other = Coordinator(FLEET, open_store(cloud.folder / "state"), 1.0, 1)
    other.load(cloud.now)
    times = 0

    def meanwhile(*args: object) -> Summary:
        nonlocal times
        times += 1
        if times == 1:
            other.poll(cloud.now, 64)
        return summarise(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(closing, "summarise", meanwhile)
    cloud.poll()
    assert times == 2 and read_sums(cloud.store.sums(RUN)).closed == 1
    assert [(row.round, row.open) for row in cloud.store.rounds(RUN)] == [(1, False), (2, True)]


def test_a_strategy_whose_remarks_fail_goes_on(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> tuple[str, ...]:
        raise StrategyError("remarks: a user's own code")

    monkeypatch.setattr(Run, "remarks", fails)
    cloud.hello()
    for name in "ab":
        cloud.offer(name, small_update(cloud.order(name)))
    cloud.poll()
    summary = cloud.summaries()[0]
    assert not summary.failure and not summary.remarks
