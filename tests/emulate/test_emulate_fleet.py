"""What an emulation watches and reports, event by event."""

import io
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tests.edge.home import make_bundle

from sedge_cloud.config import RunConfig
from sedge_cloud.events import RoundClosed, RoundOpened, RunEnded, UpdateReceived
from sedge_cloud.rounds import DeviceSummary, Summary
from sedge_edge.runtime import Runtime
from sedge_emulate import fleet as fleet_module
from sedge_emulate.broker import Broker
from sedge_emulate.config import DataConfig
from sedge_emulate.devices import Share, share_out
from sedge_emulate.fleet import Host, Watch, run_strategy
from sedge_emulate.progress import Progress
from sedge_protocol.errors import ConfigError, DataError, LinkError, StorageError
from sedge_protocol.mqtt import LinkCounters
from sedge_protocol.update import Metrics, Report


class Link:
    """A device's link, of which only the counters matter."""

    def __init__(self) -> None:
        self.counters = LinkCounters()

    def measure(self) -> LinkCounters:
        return self.counters

    def carry(self, sent: int, received: int) -> None:
        self.counters.bytes_sent += sent
        self.counters.bytes_received += received


@pytest.fixture
def links() -> list[Link]:
    return [Link(), Link()]


@pytest.fixture
def watch(links: list[Link]) -> Watch:
    runtimes: Any = [SimpleNamespace(link=link) for link in links]
    progress = Progress(Console(file=io.StringIO()))
    progress.strategy("s", 2)
    return Watch(progress, runtimes, idle_s=50.0)


def report(number: int) -> Report:
    metrics = Metrics(1.0, 0.5, 4)
    return Report(
        run="s",
        round=number,
        task="train",
        layout_hash=bytes(32),
        model_hash=bytes(32),
        num_examples=4,
        before=metrics,
        after=metrics,
        train_loss=0.25,
        steps=1,
        seconds=0.1,
    )


def summary(number: int, task: str = "train", count: int = 2, failure: str = "") -> Summary:
    devices = tuple(DeviceSummary(f"device-{i}", 4, 0.25, 0.5, 1000 + i) for i in range(count))
    return Summary("s", number, task, 2, 0, devices, 0.25, 0.25, 0.5, 2001, {"w": 4}, failure)


def test_rounds_and_their_bytes(watch: Watch, links: list[Link]) -> None:
    links[0].carry(500, 700)  # hellos, before the first round
    watch.observe(RoundOpened("s", 1, "train", ("device-0", "device-1")))
    links[0].carry(1000, 10_000)
    links[1].carry(1100, 10_000)
    for device, late in (("device-0", False), ("device-1", False), ("device-9", True)):
        watch.observe(UpdateReceived("s", 1, device, report(1), 1000, late))
    watch.observe(RoundClosed(summary(1)))
    watch.observe(RoundOpened("s", 2, "train", ("device-0", "device-1")))
    links[1].carry(300, 0)
    watch.observe(RoundClosed(summary(2)))
    watch.observe(RoundOpened("s", 3, "evaluate", ("device-0", "device-1")))
    links[1].carry(99, 99)
    watch.observe(RoundClosed(summary(3, "evaluate")))
    first, second = watch.rounds
    assert (first.bytes_up, first.bytes_down) == (2600, 20_700)  # joining counts to the first round
    assert (second.bytes_up, second.bytes_down) == (300, 0)
    assert (first.late, second.late) == (1, 0)
    assert (first.num_updates, first.before_mean, first.after_mean) == (2, 0.25, 0.5)
    assert [s.round for s in watch.summaries] == [1, 2, 3]
    assert watch.traffic() == (2999, 20_799)


def test_it_is_over_when_the_run_has_ended(watch: Watch) -> None:
    assert not watch.over()
    watch.observe(RunEnded("s", "finished"))
    assert watch.over()


def test_a_silent_fleet_is_an_error(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 49)
    assert not watch.over()
    watch.observe(RoundOpened("s", 1, "train", ("device-0",)))
    monkeypatch.setattr(time, "monotonic", lambda: now + 98)
    assert not watch.over()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    with pytest.raises(LinkError, match="the fleet has been silent for 50 s"):
        watch.over()


@pytest.mark.parametrize("failure", ["", "0 of 2 devices sent an update that counts"])
def test_a_run_without_a_device_says_why(
    watch: Watch, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.observe(RoundClosed(summary(1, count=0, failure=failure)))
    service: Any = None
    with pytest.raises(DataError) as caught:
        fleet_module._result("title", RunConfig(strategy="fedavg"), watch, service, [], 1.0)
    assert str(caught.value).startswith(f"title: {failure or 'no device answered in round 1'}; ")


# A real one, as small as it gets.


@pytest.fixture
def shares() -> list[Share]:
    config = DataConfig(dataset="digits", examples=60, alpha=10.0, min_examples=5)
    return share_out(config, 2, 0, Path())[1]


def config(**changes: Any) -> RunConfig:
    return RunConfig(strategy="fedavg", num_rounds=1, deadline_s=20.0, **changes)


def test_a_model_that_fits_no_device(shares: list[Share], tmp_path: Path) -> None:
    """Bad from the first round on: an error that says so, and every socket and thread is gone."""
    make_bundle(tmp_path / "bundle")  # for rows of six numbers; the devices have images
    with Broker() as broker, Progress(Console(file=io.StringIO())) as progress:
        host = Host(tmp_path / "state", broker.url, 1)
        with pytest.raises(DataError, match="2 declined"):
            run_strategy("a title!", config(), tmp_path / "bundle", shares, host, progress)
    assert (tmp_path / "state" / "a-title" / "cloud" / "sedge.sqlite").exists()


def test_a_broker_that_nobody_reaches(
    shares: list[Share], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path / "bundle")
    host = Host(tmp_path / "state", "mqtt://127.0.0.1:1", 1)

    def impatient(progress: Progress, runtimes: list[Runtime], idle_s: float) -> Watch:
        return Watch(progress, runtimes, idle_s=0.5)

    monkeypatch.setattr(fleet_module, "Watch", impatient)
    with (
        Progress(Console(file=io.StringIO())) as progress,
        pytest.raises(LinkError, match="silent"),
    ):
        run_strategy("t", config(), tmp_path / "bundle", shares, host, progress)


def test_no_bundle(shares: list[Share], tmp_path: Path) -> None:
    host = Host(tmp_path / "state", "mqtt://127.0.0.1:1", 1)
    with (
        Progress(Console(file=io.StringIO())) as progress,
        pytest.raises(StorageError, match="nothing"),
    ):
        run_strategy("t", config(), tmp_path / "nothing", shares, host, progress)


def test_a_strategy_that_there_is_not(shares: list[Share], tmp_path: Path) -> None:
    make_bundle(tmp_path / "bundle")
    host = Host(tmp_path / "state", "mqtt://127.0.0.1:1", 1)
    wrong = RunConfig(strategy="fedwhat")
    with (
        Progress(Console(file=io.StringIO())) as progress,
        pytest.raises(ConfigError, match="fedwhat"),
    ):
        run_strategy("t", wrong, tmp_path / "bundle", shares, host, progress)
