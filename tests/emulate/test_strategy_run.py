"""One strategy from its first round to its result, on either link."""

import io
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console
from tests.cloud import given
from tests.emulate.sample import SAMPLE
from tests.emulate.workers.fleet_of_four import InlinePool
from tests.fleet import Crash, always, failing

from sedge_cloud.coding import WHOLE, BroadcastConfig, CodecConfig
from sedge_cloud.config import TrainingConfig
from sedge_cloud.privacy import PrivacyConfig
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Update
from sedge_edge.jobs.storage import WholeBlobs
from sedge_emulate import strategy_run as module
from sedge_emulate.broker.fleet import BrokerFleet
from sedge_emulate.config import (
    DataConfig,
    EmulationConfig,
    ModelConfig,
    RoundsConfig,
    StrategyConfig,
    TrainerConfig,
)
from sedge_emulate.device_classes import ChurnConfig, ClassConfig, LinkConfig
from sedge_emulate.emulation import SharedSetup, set_up
from sedge_emulate.progress import Progress
from sedge_emulate.report.page import page
from sedge_emulate.result import StrategyResult
from sedge_emulate.strategy_run import result_of
from sedge_emulate.virtual import fleet as virtual_fleet
from sedge_emulate.virtual.disk import HostDisk
from sedge_protocol.codec import ValueCoding
from sedge_protocol.errors import ConfigError, DataError, LinkError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.layout import Layout
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.training import Training

pytestmark = pytest.mark.usefixtures("exported_here")
DEVICES = 3
FEDOBP = StrategyConfig(name="fedobp", label="Fed OBP", options={"quantile": 0.9})
CONFIG = EmulationConfig(
    devices=DEVICES,
    data=DataConfig(dataset="mine.npz", alpha=5.0, min_examples=5),
    model=ModelConfig(batch_size=8),
    trainer=TrainerConfig(backend="onnx"),
    rounds=RoundsConfig(num_rounds=2),
    classes=(ClassConfig("steady", step_ms=500),),
    strategies=(FEDOBP,),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("base")
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    np.savez(base / "mine.npz", x=rng.normal(y[:, None], 1.0, (90, 6)), y=y)
    set_up(CONFIG, base, base / "out", resume=False, note=lambda text: None)
    return base


@pytest.fixture
def shared(template: Path, tmp_path: Path) -> SharedSetup:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return set_up(CONFIG, tmp_path, tmp_path / "out", resume=True, note=lambda text: None)


def pool_of(shared: SharedSetup) -> Any:
    return InlinePool(shared.setup, hold=True)


def with_(shared: SharedSetup, **changes: Any) -> SharedSetup:
    """The fleet with other values in these fields of its file."""
    return replace(shared, config=msgspec.structs.replace(shared.config, **changes))


def played(
    shared: SharedSetup, strategy: StrategyConfig = FEDOBP, resume: bool = False, pool: Any = None,
    url: str | None = None, screen: io.StringIO | None = None,
) -> StrategyResult:  # fmt: skip
    """The strategy's result, by default on a pool of its own."""
    progress = Progress(Console(file=screen or io.StringIO(), width=200))
    return result_of(shared, strategy, resume, pool or pool_of(shared), url, progress)


def timeless(result: StrategyResult) -> StrategyResult:
    rounds = [msgspec.structs.replace(r, seconds=0.0) for r in result.rounds]
    return msgspec.structs.replace(result, seconds=0.0, engine=None, rounds=rounds)


def test_a_run_in_which_nothing_was_personal_says_so(shared: SharedSetup) -> None:
    """At its start, for its options, in the first round that devices return to, and in its result."""
    nothing = StrategyConfig(name="fedobp", label="none", options={"quantile": 1.0})
    result = played(shared, nothing, screen=(screen := io.StringIO()))
    at_most = "fedobp: quantile 1 of 2,003 elements keeps at most 0 personal, which amounts to Fed"
    assert screen.getvalue().index(at_most) < screen.getvalue().index("none round 1/2")
    options, came = result.remarks
    assert options.startswith(at_most)
    assert came.startswith("fedobp: no element is personal, as in FedAvg")
    told = " ".join(screen.getvalue().split())
    assert told.count(came) == 1
    assert told.index("none round 1/2") < told.index(came) < told.index("none round 2/2")


@pytest.mark.skipif(find_spec("dp_accounting") is None, reason="needs sedge-fl[privacy]")
def test_a_private_run_is_emulated_and_comes_out_the_same(shared: SharedSetup) -> None:
    """What devices measure is seen, and its noise follows from the seed."""
    private = msgspec.structs.replace(
        FEDOBP, options={"quantile": 0.9, "scoring": "device"}, broadcast=WHOLE,
        codec=CodecConfig(error_feedback=False), privacy=PrivacyConfig(epsilon=8, delta=0.01, clip=1e-3),
    )  # fmt: skip
    one, again = (played(shared, private) for _ in range(2))
    assert timeless(one) == timeless(again)
    assert [r.num_updates for r in one.rounds] == [DEVICES, DEVICES] and one.after.mean > 0
    noised = np.fromfile(shared.out / "models" / "fed-obp.bin", "<f4")
    start = load(shared.bundle)[1]
    moved = float(np.linalg.norm(noised - start))
    # Two rounds of noise in 2,003 elements, far longer than two changes of a clip's length.
    assert 2e-3 < moved < 0.1
    loose = msgspec.structs.replace(private, privacy=PrivacyConfig(epsilon=8, delta=0.5, clip=1.0))
    expected = r"privacy\.delta: found 0\.5, expected below 1 / 3 devices"
    with pytest.raises(ConfigError, match=expected):
        with_(shared, strategies=(loose,)).config.check()


class Overflowing(given.Given, frozen=True):
    """Its second model is more than fp16 can say."""

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        found = super().apply(context, updates)
        return found if context.round < 1 else context.replaced(np.full_like(found.theta, 1e30))


def test_a_result_tells_everything(shared: SharedSetup) -> None:
    pool, screen = pool_of(shared), io.StringIO()
    result = played(shared, pool=pool, screen=screen)
    assert (result.name, result.options) == ("Fed OBP", {"quantile": 0.9})
    assert [r.round for r in result.rounds] == [1, 2]
    assert [r.num_updates for r in result.rounds] == [DEVICES, DEVICES]
    assert result.after.mean > result.rounds[0].before_mean
    assert not result.remarks
    assert [d.device for d in result.devices] == ["device-0", "device-1", "device-2"]
    for number, device in enumerate(result.devices):
        assert device.num_train == shared.shares.num_train(number)
        assert device.class_name == "steady"
        assert device.payload_up > 0
    assert [(kind.name, kind.devices) for kind in result.classes] == [("steady", DEVICES)]
    # Virtual time: the slowest device's steps, half a second each.
    steps = max(-(-shared.shares.num_train(number) // 8) for number in range(DEVICES))
    for one in result.rounds:
        assert steps / 2 < one.closed_s - one.opened_s < steps / 2 + 3
    # A tenth of the parameters is each device's own.
    assert sum(share.elements for share in result.personal) == pytest.approx(200, abs=2)
    assert sum(share.share for share in result.personal) == pytest.approx(1)
    traffic = result.bytes
    assert traffic.dense_update == 8012
    assert 0 < traffic.coordinator_up < traffic.device_down
    assert traffic.payload_up < traffic.device_up
    engine = result.engine
    assert engine is not None
    assert (engine.trainer, engine.workers, engine.device_rounds) == ("onnx", 1, 3 * DEVICES)
    assert engine.train_s == pool.train_s
    assert 0 < engine.train_s < engine.wall_s
    theta = np.fromfile(shared.out / "models" / "fed-obp.bin", "<f4")
    assert theta.size == 2003
    assert "Fed OBP round 2/2" in screen.getvalue()


def test_every_model_is_tested_on_the_same_examples(template: Path, tmp_path: Path) -> None:
    """With nothing personal every device is sent the global model, and does as well as that one."""
    data = msgspec.structs.replace(CONFIG.data, central_test=0.2)
    model = msgspec.structs.replace(CONFIG.model, seed=CONFIG.seed)
    config = msgspec.structs.replace(CONFIG, data=data, model=model, seed=7)
    central = set_up(config, template, tmp_path / "out", resume=False, note=lambda text: None)
    # The first weights have a seed of their own.
    assert (load(central.bundle)[1] == load(template / "out" / "bundle")[1]).all()
    result = played(central, StrategyConfig(name="fedavg"))
    found = result.central
    assert found is not None
    assert (found.examples, found.before.min) == (18, found.before.max)
    assert found.global_model == found.before.mean
    pairs = [device.central for device in result.devices if device.central is not None]
    assert len(pairs) == DEVICES
    assert found.after.mean == pytest.approx(sum(after for _, after in pairs) / DEVICES)
    assert found.after.min < found.after.max
    again = played(central).central
    assert again is not None
    assert again.before.min < again.before.max  # what is personal differs


def test_devices_of_a_class_miss_the_last_rounds(shared: SharedSetup) -> None:
    """One misses the last of two rounds, one both; all are there for the final evaluation."""
    rounds = {"steady": 0, "away": 1, "new": 9}
    classes = tuple(ClassConfig(name, absent_rounds=count) for name, count in rounds.items())
    absent = with_(shared, classes=classes, rounds=RoundsConfig(num_rounds=2, seed=3))
    absent.config.check()
    result = played(absent, StrategyConfig(name="fedrep"))
    assert [r.num_updates for r in result.rounds] == [2, 1]
    assert sorted(device.class_name for device in result.devices) == ["away", "new", "steady"]
    assert result.epochs == 2  # FedRep trains its head for one epoch and its body for one
    expected = r"classes\.absent_rounds: found 1, expected 0 in at least one class"
    with pytest.raises(ConfigError, match=expected):
        with_(absent, classes=classes[1:]).config.check()


def test_who_learned_with_whom(shared: SharedSetup) -> None:
    """Of three devices at least the pair that is most alike, in each of two rounds."""
    result = played(shared, StrategyConfig(name="fedcac"))
    counts = [n for others in result.partners.values() for n in others.values()]
    assert max(counts) == 2
    assert all(device not in others for device, others in result.partners.items())
    html = page(msgspec.structs.replace(SAMPLE, strategies=[result]))
    device, others = next(iter(result.partners.items()))
    other, rounds = max(others.items(), key=lambda pair: pair[1])
    assert f"<td>{device}</td><td>" in html
    assert f"{other} ({rounds})" in html


def test_a_strategy_that_has_ended_is_not_run_again(shared: SharedSetup) -> None:
    first, pool = played(shared), pool_of(shared)
    assert played(shared, FEDOBP, True, pool) == first
    assert pool.requests == []
    assert timeless(played(shared, pool=pool)) == timeless(first)
    assert len(pool.requests) == 3 * DEVICES


def test_what_was_trained_before_a_kill_is_not_trained_again(shared: SharedSetup) -> None:
    first, second = pool_of(shared), pool_of(shared)
    with failing(module, "keep", Crash()), pytest.raises(Crash):
        played(shared, pool=first)
    result = played(shared, FEDOBP, True, second)
    assert second.requests == []
    assert len(first.requests) == 3 * DEVICES
    assert [r.num_updates for r in result.rounds] == [DEVICES, DEVICES]


@pytest.fixture
def forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No result is kept."""
    monkeypatch.setattr(module, "keep", always(None))


@pytest.mark.usefixtures("forgetting")
def test_another_trainer_finds_nothing_in_the_cache(shared: SharedSetup) -> None:
    other = pool_of(shared)
    other.trainer = "another"
    played(shared, FEDOBP, True)
    played(shared, FEDOBP, True, other)
    assert len(other.requests) == 3 * DEVICES


def test_a_fleet_that_cannot_train_says_why(shared: SharedSetup) -> None:
    wild = with_(shared, training=TrainingConfig(learning_rate=1000.0, local_epochs=100))
    expected = r"Fed OBP: 0 of 3 devices sent .* because 'TrainingDiverged: .* \([123] of 3\)"
    with pytest.raises(DataError, match=expected):
        played(wild)
    assert not (shared.out / "models").exists()


def test_a_run_that_cannot_go_on_says_why(shared: SharedSetup) -> None:
    """A later plan may fail where the first did not."""
    given.clear()
    given.PLANS["device-1"] = lambda context, client: Assignment(width=context.round)
    expected = r"mine: round 2 cannot be planned: .*Given, device-1: wid"
    try:
        with pytest.raises(DataError, match=expected):
            played(shared, StrategyConfig(name=given.NAME, label="mine"))
    finally:
        given.clear()
    assert not (shared.out / "models").exists()


def test_a_run_that_fails_with_answers_in_hand_has_no_result(shared: SharedSetup) -> None:
    """Everyone has answered, and yet there is no next model: that round is no final evaluation."""
    fp16 = BroadcastConfig(ValueCoding.FP16, 1.0)
    overflowing = with_(shared, rounds=RoundsConfig(num_rounds=3), broadcast=fp16)
    own = StrategyConfig(name="tests.emulate.test_strategy_run:Overflowing", label="mine")
    with pytest.raises(DataError, match=r"mine: the next global model cannot be created: .* fp16"):
        played(overflowing, own)
    given.clear()
    assert not (shared.out / "models").exists()


class Listing(given.Given, frozen=True):
    """Has a list of its two rounds, and nothing to say of personal elements."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        if context.is_evaluation:
            return Assignment()
        return given.assigned(training=Training(local_epochs=[1, 3][context.round]))

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        assert personal is None, "not known"
        return ()


class Ending(given.Given, frozen=True):
    """Has no training left to plan after the second round."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        assert context.is_evaluation or "over" not in context.arrays
        return Assignment()

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        over = {"over": np.zeros(1, np.float32)} if context.round == 1 else {}
        return context.replaced(super().apply(context, updates).theta, over)


@pytest.mark.parametrize(("own", "count", "said"), [("Listing", 3, "not known"), ("Ending", 0, "")])
def test_a_strategy_that_fails_after_the_last_round_has_a_result(
    shared: SharedSetup, own: str, count: int, said: str
) -> None:
    strategy = StrategyConfig(name=f"tests.emulate.test_strategy_run:{own}", label="mine")
    result = played(shared, strategy)
    given.clear()
    assert (len(result.rounds), result.epochs) == (2, count)
    assert said in "".join(result.remarks)


@pytest.fixture
def deaf(shared: SharedSetup) -> SharedSetup:
    """A fleet to which every message is lost."""
    return with_(shared, classes=(ClassConfig("deaf", link=LinkConfig(loss=1.0)),))


def test_a_fleet_in_which_nothing_happens(deaf: SharedSetup) -> None:
    """Virtual time would pass for ever."""
    with pytest.raises(LinkError, match="60000 virtual seconds, with 0 of 3 devices online"):
        played(deaf)


def test_devices_that_come_late_are_waited_for(shared: SharedSetup) -> None:
    late, one = ChurnConfig(join_within_s=20_000), RoundsConfig(num_rounds=1, deadline_s=1)
    assert played(with_(shared, churn=late, rounds=one)).rounds[0].opened_s > 1000


def test_a_full_disk_of_this_host_is_named(
    deaf: SharedSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: BlobFolder, length: int) -> None:
        raise StorageError(f"disk full: needs {length} bytes")

    monkeypatch.setattr(BlobFolder, "require_room", full)
    with pytest.raises(StorageError, match="disk full: needs 8012 bytes"):  # the whole model
        played(deaf)


@pytest.mark.usefixtures("forgetting")
def test_files_go_though_an_earlier_start_had_other_settings(
    shared: SharedSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for its jobs any more: this run has nothing to catch up with. More rounds it has."""
    known: list[bool] = []

    def noted(folder: Path, live: bool, source: WholeBlobs) -> HostDisk:
        known.append(not live)
        return HostDisk(folder, live, source)

    monkeypatch.setattr(virtual_fleet, "HostDisk", noted)
    other = msgspec.structs.replace(FEDOBP, training=TrainingConfig(learning_rate=0.02))
    longer = with_(shared, rounds=RoundsConfig(num_rounds=3))
    for each, strategy in ((shared, FEDOBP), (shared, FEDOBP), (shared, other), (longer, FEDOBP)):
        played(each, strategy, True)
    assert known == [False, True, False, True]


def test_real_devices_are_invited_before_the_fleet_begins(shared: SharedSetup) -> None:
    joined = with_(shared, real=("pi-1", "pi-2"), link="mosquitto")
    url, screen = "mqtt://127.0.0.1:1", io.StringIO()
    with failing(BrokerFleet, "play", Crash()), pytest.raises(Crash):
        played(joined, url=url, screen=screen)
    for device in ("pi-1", "pi-2"):
        folder = shared.out / "join" / device
        text = (folder / "edge.toml").read_text()
        for words in (f'device = "{device}"', 'fleet = "fed-obp"', url):
            assert words in text
        note = f"{device} can join from {folder}: sedge-edge -c {folder}/edge.toml run"
        assert note.replace(" ", "") in "".join(screen.getvalue().split())
    # Begun anew into the same folder they have new secrets.
    secret = (folder / "secret").read_text()
    shutil.rmtree(shared.out / "state" / "runs")
    with failing(BrokerFleet, "play", Crash()), pytest.raises(Crash):
        played(joined, url=url)
    assert (folder / "secret").read_text() != secret
