"""What is seen of a run, event by event."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from sedge_cloud.events import RoundClosed, RoundOpened, RunEnded, UpdateReceived
from sedge_cloud.store.records import DeviceSummary, Summary
from sedge_emulate.progress import Progress
from sedge_emulate.watch import Totals, Watch
from sedge_protocol.wire.update import Metrics, Report


class Run:
    """A watch, its clock and its counters."""

    def __init__(self) -> None:
        self.now = 0.0
        self.totals = Totals({})
        self.screen = io.StringIO()
        progress = Progress(Console(file=self.screen))
        progress.strategy("s", 2)
        self.watch = Watch(progress, lambda: self.now, lambda: self.totals)

    def carry(self, up: int, down: int, resent: int = 0, device: str = "device-0") -> None:
        old = self.totals
        was = old.devices.get(device, (0, 0))
        devices = {**old.devices, device: (was[0] + up, was[1] + down)}
        own = old.coordinator
        self.totals = Totals(devices, (own[0] + 7, own[1] + 5), 0, 0, old.resent + resent)


@pytest.fixture
def run() -> Run:
    return Run()


def report(number: int) -> Report:
    metrics = Metrics(1.0, 0.5, 4)
    return Report(
        run="s", round=number, task="train", layout_hash=bytes(32), model_hash=bytes(32),
        num_examples=4, before=metrics, after=metrics, train_loss=0.25, steps=1, seconds=0.1,
    )  # fmt: skip


def summary(number: int, task: str = "train", count: int = 2) -> Summary:
    devices = tuple(DeviceSummary(f"device-{i}", 4, 0.25, 0.5, 1000 + i) for i in range(count))
    return Summary("s", number, task, 3, 0, devices, 0.25, 0.25, 0.5, 2001, {"w": 4})


def test_what_comes_again_is_announced(run: Run) -> None:
    run.watch.playing_back(0)
    before = run.screen.getvalue()
    run.watch.playing_back(12)
    said = run.screen.getvalue().removeprefix(before)
    assert said.strip() == "12 jobs are already done; replaying them up to the interruption"


COHORT = ("device-0", "device-1", "device-2")


def test_rounds_and_their_bytes(run: Run) -> None:
    watch = run.watch
    run.carry(500, 700)  # hellos, before the first round
    run.now = 3.0
    watch.observe(RoundOpened("s", 1, "train", COHORT))
    run.carry(2100, 20_000, 64)
    for device, late in (("device-0", False), ("device-1", False), ("device-9", True)):
        watch.observe(UpdateReceived("s", 1, device, report(1), 1000, late))
    run.now = 10.0
    watch.observe(RoundClosed(summary(1)))
    watch.observe(RoundOpened("s", 2, "evaluate", COHORT))
    run.carry(99, 99)
    watch.observe(RoundClosed(summary(2, "evaluate")))
    run.now = 11.0
    watch.observe(RoundOpened("s", 3, "train", COHORT))
    run.carry(300, 0)
    run.now = 30.0
    watch.observe(RoundClosed(summary(3, count=3)))
    first, second = watch.rounds
    assert (first.bytes_up, first.bytes_down) == (2100, 20_000)  # neither joining
    assert (second.bytes_up, second.bytes_down) == (300, 0)  # nor an evaluation counts to a round
    assert (first.resent_bytes, second.resent_bytes) == (64, 0)
    assert (first.late, second.late) == (1, 0)
    assert (first.late_devices, second.late_devices) == (["device-2"], [])
    assert (first.opened_s, first.closed_s, second.opened_s, second.closed_s) == (3, 10, 11, 30)
    assert (first.num_updates, first.before_mean, first.after_mean) == (2, 0.25, 0.5)
    assert first.personal == second.personal == {"w": pytest.approx(4 / 3)}  # of a cohort of three
    assert [s.round for s in watch.summaries] == [1, 2, 3]
    assert watch.late == {"device-2": 1}


def test_newcomers_are_counted_apart_until_their_first_update(run: Run) -> None:
    watch = run.watch
    for device in COHORT:
        run.carry(1, 1, device=device)
    watch.observe(RoundOpened("s", 1, "train", COHORT))
    for device in COHORT:  # the third does not come to its end
        run.carry(100, 9000, device=device)
    for device in COHORT[:2]:
        watch.observe(UpdateReceived("s", 1, device, report(1), 1000, False))
    watch.observe(RoundClosed(summary(1)))
    watch.observe(UpdateReceived("s", 1, COHORT[2], report(1), 1000, True))
    watch.observe(RoundOpened("s", 2, "train", COHORT))
    run.carry(10, 20, device=COHORT[0])
    run.carry(10, 20, device="device-3")  # never heard of, and without an update
    watch.observe(UpdateReceived("s", 2, COHORT[0], report(2), 1000, False))
    watch.observe(RoundClosed(summary(2, count=1)))
    first, second = watch.rounds
    assert (first.newcomers, first.newcomer_up, first.newcomer_down) == (2, 300, 27_000)
    assert (second.newcomers, second.newcomer_up, second.newcomer_down) == (1, 10, 20)
    assert (first.bytes_up, second.bytes_up) == (300, 20)
    assert (second.coordinator_up, second.coordinator_down) == (14, 10)


def test_a_device_of_a_round_before_this_start_is_no_newcomer(run: Run) -> None:
    run.watch.remember(summary(1))
    run.watch.observe(RoundOpened("s", 2, "train", COHORT[:2]))
    run.carry(10, 20)
    run.watch.observe(UpdateReceived("s", 2, "device-0", report(2), 1000, False))
    run.watch.observe(RoundClosed(summary(2)))
    found = run.watch.rounds[-1]
    assert (found.newcomers, found.newcomer_up, found.bytes_up) == (0, 0, 10)


def test_it_is_over_when_the_run_has_ended(run: Run) -> None:
    """Why it failed tells the coordinator, or the round that ended it, or nobody if it had before."""
    assert not run.watch.ended
    run.now = 5.0
    for status, why, failure in (
        ("finished", "", ""),
        ("failed", "no plan", "no plan"),
        ("failed", "", "the run is failed; start it again with --fresh"),
        ("stopped", "", "the run is stopped; start it again with --fresh"),
    ):
        run.watch.observe(RunEnded("s", status, why))
        assert run.watch.failure == failure
    assert run.watch.ended and run.watch.last_event_s == 5.0
    run.watch.observe(RoundClosed(replace(summary(1), failure="not a finite number")))
    run.watch.observe(RunEnded("s", "failed"))
    assert run.watch.failure == "not a finite number"
