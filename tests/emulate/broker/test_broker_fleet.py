"""One strategy over a real broker, up to its end and up to every way in which it has none."""

import io
import shutil
import tomllib
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.edge.home import DEAD_URL
from tests.emulate.workers.fleet_of_four import InlinePool, make_setup
from tests.fleet import Crash, failing

from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import RunConfig
from sedge_cloud.events import RunEnded
from sedge_emulate.broker import fleet as module
from sedge_emulate.broker.brokers import Broker
from sedge_emulate.broker.fleet import BrokerFleet
from sedge_emulate.data.shares import Shares
from sedge_emulate.emulation import StrategyRun
from sedge_emulate.progress import Progress
from sedge_emulate.watch import Totals, Watch
from sedge_emulate.workers.setup import WorkerSetup
from sedge_protocol.errors import ConfigError, LinkError
from sedge_protocol.wire.message_limit import PACKET_SIZES

pytestmark = pytest.mark.fleet

DEVICES = 3
RUN = RunConfig(
    strategy="fedavg", num_rounds=2, min_train_devices=DEVICES, min_available_devices=DEVICES,
    deadline_s=20.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Generator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> WorkerSetup:
    return make_setup(tmp_path_factory.mktemp("setup"), devices=DEVICES)


@pytest.fixture
def pool(setup: WorkerSetup) -> Any:
    return InlinePool(setup)


Opened = Callable[..., BrokerFleet]


@pytest.fixture
def opened(setup: WorkerSetup, pool: Any, tmp_path: Path) -> Generator[Opened]:
    """Opens the run's fleet, with other values in these fields of it; what it opened before is closed."""
    first = StrategyRun("A title!", RUN, tmp_path / "state", False)
    with ExitStack() as last:

        def made(
            url: str = DEAD_URL, pool: Any = pool, bundle: Path = setup.bundle, **run: Any
        ) -> BrokerFleet:
            last.close()
            data = Shares.open(setup.data)
            fleet = BrokerFleet(replace(first, **run), bundle, data, pool, url)
            return last.enter_context(closing(fleet))

        yield made


def watch_of(fleet: BrokerFleet) -> Watch:
    progress = Progress(Console(file=io.StringIO()))
    progress.strategy("A title!", RUN.num_rounds)
    return Watch(progress, fleet.clock, fleet.totals)


def test_a_run_to_its_end_has_its_result_also_when_it_is_killed_then(
    broker: Broker, pool: Any, opened: Opened, tmp_path: Path
) -> None:
    fleet = opened(broker.url)
    assert fleet.name == "a-title"
    assert (fleet.totals(), fleet.seen(0)) == (Totals({}), {"central": None})
    watch = watch_of(fleet)
    fleet.play(watch)
    assert [s.task for s in watch.summaries] == ["train", "train", "evaluate"]
    assert all(len(s.devices) == DEVICES for s in watch.summaries)
    assert [r.round for r in watch.rounds] == [1, 2]
    totals = fleet.totals()
    # It has measured with its own messages how large they may be.
    sent, received = (moved - sum(PACKET_SIZES) for moved in totals.coordinator)
    # What one side sends goes through the broker to the other: all of it up, and down once for each.
    assert received == pytest.approx(totals.up, rel=0.3)
    assert sent < totals.down < DEVICES * sent
    assert sum(r.bytes_up for r in watch.rounds) < totals.up
    assert 0 < watch.last_event_s <= fleet.clock()
    assert {request.home for request in pool.requests} == {
        tmp_path / "state" / f"device-{number}" for number in range(DEVICES)
    }
    # Nobody would tell a second time that the run has ended.
    resumed = opened(resumed=True)
    again = watch_of(resumed)
    resumed.play(again)
    assert again.ended
    assert again.summaries == watch.summaries
    assert len(pool.requests) == DEVICES * 3


def test_a_run_cannot_be_changed_when_it_is_resumed(setup: WorkerSetup, opened: Opened) -> None:
    start_run(opened().store, module.RUN, setup.bundle, RUN)
    run = msgspec.structs.replace(RUN, num_rounds=9, quorum=0.5)
    resumed = opened(resumed=True, config=run)
    expected = "--resume: found 'num_rounds, quorum', expected the settings"
    with pytest.raises(ConfigError, match=expected):
        resumed.play(watch_of(resumed))


def test_a_broker_that_nobody_reaches(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    fleet = opened(config=msgspec.structs.replace(RUN, deadline_s=1.0))
    with pytest.raises(LinkError, match="the fleet has been silent for 1 s; see the log"):
        fleet.play(watch_of(fleet))


def test_with_real_devices_it_waits_for_the_first_round(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = opened()
    fleet.invite("pi-1", tmp_path / "pi-1")
    watch = watch_of(fleet)
    monkeypatch.setattr(fleet, "clock", lambda: 1e6)
    assert not fleet._over(watch)
    fleet._observer(watch)(RunEnded("other", "failed"))
    watch.ended = False
    watch.last_event_s = 0.0
    with pytest.raises(LinkError, match="silent"):
        fleet._over(watch)


def test_a_worker_that_has_died_ends_it(broker: Broker, setup: WorkerSetup, opened: Opened) -> None:
    class Dying(InlinePool):
        """Its first job takes a worker with it."""

        def flush(self) -> None:
            self.failure = LinkError("a worker process has died")
            for _, future in self.waiting:
                future.set_exception(self.failure)
            self.waiting.clear()

    fleet = opened(broker.url, Dying(setup))
    with pytest.raises(LinkError, match="a worker process has died"):
        fleet.play(watch_of(fleet))
    # Nobody has declined anything: resumed, it goes on as if nothing had happened.
    resumed = opened(broker.url, resumed=True)
    watch = watch_of(resumed)
    resumed.play(watch)
    assert [len(s.devices) for s in watch.summaries] == [DEVICES] * 3
    assert all(s.declined == 0 for s in watch.summaries)


def test_a_model_that_fits_no_device(
    broker: Broker, setup: WorkerSetup, opened: Opened, tmp_path: Path
) -> None:
    """Bad from the first round on: the run fails, and says so."""
    wide = make_setup(tmp_path / "wide", devices=DEVICES, features=9)
    narrow: Any = InlinePool(replace(wide, data=setup.data))
    fleet = opened(broker.url, narrow, wide.bundle)
    watch = watch_of(fleet)
    fleet.play(watch)
    assert watch.ended
    assert "3 declined" in watch.summaries[-1].failure


def test_what_a_real_device_needs_is_written_once(opened: Opened, tmp_path: Path) -> None:
    fleet = opened()
    folder = tmp_path / "join" / "pi-1"
    fleet.invite("pi-1", folder)
    text = (folder / "edge.toml").read_text()
    config = tomllib.loads(text)
    assert (config["device"], config["fleet"]) == ("pi-1", "a-title")
    assert config["broker"]["url"] == DEAD_URL
    (row,) = fleet.store.devices()
    assert bytes.fromhex((folder / "secret").read_text()) == row.secret
    again = opened(resumed=True)
    again.invite("pi-1", folder)
    assert (folder / "edge.toml").read_text() == text
    assert len(again.store.devices()) == 1


def test_a_folder_of_an_earlier_fleet_is_taken_over_and_the_users_files_stay(
    opened: Opened, tmp_path: Path
) -> None:
    folder = tmp_path / "join" / "pi-1"
    folder.mkdir(parents=True)
    for name in ("edge.toml", "secret", "train.npz"):
        (folder / name).write_text("old")
    fleet = opened()
    fleet.invite("pi-1", folder)
    (row,) = fleet.store.devices()
    assert bytes.fromhex((folder / "secret").read_text()) == row.secret
    assert tomllib.loads((folder / "edge.toml").read_text())["device"] == "pi-1"
    assert (folder / "train.npz").read_text() == "old"
    assert [path.name for path in folder.parent.iterdir()] == ["pi-1"]


def test_killed_while_it_invites_a_device_it_goes_on(opened: Opened, tmp_path: Path) -> None:
    """The device is enrolled, and its secret not yet where it belongs."""
    folder, fleet = tmp_path / "join" / "pi-1", opened()
    with failing(Path, "iterdir", Crash()), pytest.raises(Crash):
        fleet.invite("pi-1", folder)
    assert len(fleet.store.devices()) == 1
    fleet.invite("pi-1", folder)
    assert {path.name for path in folder.iterdir()} == {"edge.toml", "secret"}


@pytest.mark.parametrize(
    ("url", "port", "moves"),
    [
        ("mqtt://127.0.0.1:1234", 1234, True),
        ("mqtt://192.168.7.1:1883", None, False),  # the user's own way to a broker
    ],
)
def test_a_device_that_joined_our_own_broker_is_told_when_it_moves(
    opened: Opened, tmp_path: Path, url: str, port: int | None, moves: bool
) -> None:
    join = tmp_path / "join"
    assert module.invited_port(join, ["pi-1"]) is None
    opened(url).invite("pi-1", join / "pi-1")
    assert module.invited_port(join, ["pi-0", "pi-1"]) == port
    toml = join / "pi-1" / "edge.toml"
    toml.write_text(toml.read_text() + "# mine\n")
    moved = opened("mqtt://127.0.0.1:5678", resumed=True)
    moved.invite("pi-1", join / "pi-1")
    found = tomllib.loads(toml.read_text())["broker"]["url"]
    assert found == ("mqtt://127.0.0.1:5678" if moves else url)
    assert toml.read_text().endswith("# mine\n")
    shutil.rmtree(join)  # copied to the device, and taken away here
    moved.invite("pi-1", join / "pi-1")
    assert not (join / "pi-1").exists()


def test_resumed_after_it_has_failed_it_says_so(setup: WorkerSetup, opened: Opened) -> None:
    """Before any round has closed nothing is known but that."""
    fleet = opened()
    start_run(fleet.store, module.RUN, setup.bundle, RUN)
    fleet.store.set_status(module.RUN, "failed")
    watch = watch_of(fleet)
    fleet.play(watch)
    assert watch.failure == "the run is failed; start it again with --fresh"


def test_no_bundle_and_no_strategy(opened: Opened, tmp_path: Path) -> None:
    fleet = opened(bundle=tmp_path / "nothing")
    with pytest.raises(ConfigError, match="nothing"):
        fleet.play(watch_of(fleet))
    fleet = opened(folder=tmp_path / "wrong", config=RunConfig(strategy="fedwhat"))
    with pytest.raises(ConfigError, match="fedwhat"):
        fleet.play(watch_of(fleet))
