"""An emulation's folder: what is set up once, kept for --resume, and cleared away."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sedge_emulate import emulation as module
from sedge_emulate.config import (
    DataConfig,
    EmulationConfig,
    ModelConfig,
    RoundsConfig,
    StrategyConfig,
    TrainerConfig,
)
from sedge_emulate.data.shares import Shares
from sedge_emulate.emulation import (
    SharedSetup,
    StrategyRun,
    clear_away,
    described_split,
    finished,
    keep,
    set_up,
    slug,
    strategy_run_of,
)
from sedge_emulate.result import RunTraffic, Spread, StrategyResult
from sedge_protocol.errors import ConfigError, DataError, StorageError
from sedge_protocol.wire.bundle import load

pytestmark = pytest.mark.usefixtures("exported_here")
FEDAVG = StrategyConfig(name="fedavg", label="Fed Avg!")
LOCAL = StrategyConfig(name="local_only")
CONFIG = EmulationConfig(
    devices=3,
    data=DataConfig(dataset="mine.npz", alpha=5.0, min_examples=5),
    model=ModelConfig(batch_size=8),
    trainer=TrainerConfig(backend="onnx"),
    strategies=(FEDAVG, LOCAL),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set of the user's own."""
    folder = tmp_path_factory.mktemp("base")
    rng = np.random.default_rng(0)
    np.savez(folder / "mine.npz", x=rng.normal(size=(90, 6)), y=np.arange(90) % 3)
    return folder


Begun = tuple[SharedSetup, list[str]]


@pytest.fixture(scope="module")
def begun(base: Path) -> Begun:
    """An emulation's folder, just set up, to be copied; and what was said meanwhile."""
    notes: list[str] = []
    return set_up(CONFIG, base, base / "out", False, notes.append, fresh=True), notes


@pytest.fixture
def out(begun: Begun, tmp_path: Path) -> Path:
    shutil.copytree(begun[0].out, tmp_path / "out")
    return tmp_path / "out"


def ignore(text: str) -> None:
    pass


def fresh(config: EmulationConfig, base: Path, out: Path) -> SharedSetup:
    return set_up(config, base, out, resume=False, note=ignore)


def resumed(config: EmulationConfig, base: Path, out: Path) -> SharedSetup:
    return set_up(config, base, out, resume=True, note=ignore)


def changed(**changes: Any) -> EmulationConfig:
    return msgspec.structs.replace(CONFIG, **changes)


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def result_of(name: str) -> StrategyResult:
    spread = Spread(0.5, 0.25, 0.1, 0.9)
    traffic = RunTraffic(
        device_up=1, device_down=2, coordinator_up=3, coordinator_down=4,
        update_payload_mean=5.0, dense_update=6,
    )  # fmt: skip
    return StrategyResult(
        name=name, options={}, rounds=[], before=spread, after=spread, devices=[], bytes=traffic,
        seconds=1.5, personal=[],
    )  # fmt: skip


# Setting up.


def test_data_and_model_are_there_and_described(begun: Begun) -> None:
    shared, notes = begun
    assert notes == [
        "90 examples of mine.npz on 3 devices, Dir(5); link: memory",
        "exported and verified: mlp, 2,003 parameters",
    ]
    assert (shared.dataset_name, shared.model.parameters, shared.model.dense_bytes) == (
        "mine.npz", 2003, 8012
    )  # fmt: skip
    assert load(shared.bundle)[1].size == 2003
    assert sum(shared.shares.num_train(i) + shared.shares.num_test(i) for i in range(3)) == 90
    assert isinstance(shared.shares.inputs, np.memmap)
    setup = shared.setup
    assert (setup.bundle, setup.trainer) == (shared.out / "bundle", CONFIG.trainer)
    assert len(Shares.open(setup.data)) == 3


@pytest.mark.slow
def test_every_width_has_its_bundle(base: Path, tmp_path: Path) -> None:
    """As the fleet file of the day says: those of another day are gone."""
    wide = changed(model=ModelConfig(batch_size=8, widths=(0.0, 0.25, 0.5)))
    shared = fresh(wide, base, tmp_path)
    assert shared.narrower == (tmp_path / "bundle-0.25", tmp_path / "bundle-0.5")
    rates = [load(folder)[0].manifest.dropped for folder in (shared.bundle, *shared.narrower)]
    assert rates == [0.0, 0.25, 0.5]
    assert strategy_run_of(shared, FEDAVG, resume=False).narrower == shared.narrower
    names = {shared.name("onnx")}
    fewer = changed(model=ModelConfig(batch_size=8, widths=(0.0, 0.5)))
    shared = fresh(fewer, base, tmp_path)
    names.add(shared.name("onnx"))
    assert {path.name for path in tmp_path.glob("bundle*")} == {"bundle", "bundle-0.5"}
    assert len(names) == 2


def test_widths_that_are_almost_the_same_have_folders_of_their_own() -> None:
    close = changed(model=ModelConfig(widths=(0.0, 0.2500001, 0.2500002)))
    assert len(set(module.narrower(close, Path()))) == 2


def test_workers_are_as_many_as_processors_unless_told(
    base: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert resumed(CONFIG, base, out).workers == 7
    assert resumed(changed(workers=3), base, out).workers == 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataConfig(split="pathological", classes_per_device=2), "2 classes per device"),
        (DataConfig(split="iid"), "IID"),
        (DataConfig(split="given", partition="p.npy"), "as p.npy says"),
        (DataConfig(split="natural"), "each with its own group of the data"),
    ],
)
def test_a_split_is_described(data: DataConfig, words: str) -> None:
    dataset: Any = type("D", (), {"targets": np.zeros(1500), "name": "digits"})
    described = described_split(changed(data=data), dataset)
    assert described == f"1,500 examples of digits on 3 devices, {words}"


def test_a_new_start_forgets_the_old_one_and_nothing_else(base: Path, out: Path) -> None:
    """What real devices know of rounds is of a run that is no more; their data stay theirs."""
    ours = [out / "state" / "runs" / "fed-avg" / "x", out / "bundle" / "old.onnx"]
    ours.append(out / "join" / "pi-1" / "state" / "blobs" / "x")
    theirs = [out / "join" / "pi-1" / "train.npz", out / "join" / "pi-1" / "edge.toml"]
    theirs += [out / "models" / "mine.bin", out / "bundle-of-joy" / "x", out / "bundle-2" / "x"]
    theirs.append(out / "join" / "x" / "state" / "x")
    for path in ours + theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    resumed(CONFIG, base, out)
    assert all(path.exists() for path in ours + theirs)
    (out / "state" / "fleet.json").unlink()  # killed while it was set up, it begins anew
    fresh(CONFIG, base, out)
    assert (out / "state" / "fleet.json").exists()
    assert not any(path.exists() for path in ours)
    assert all(path.read_text() == "mine" for path in theirs)
    assert not (out / "join" / "pi-1" / "state").exists()


@pytest.mark.parametrize("name", ["state/sedge.sqlite", "bundle/weights.bin"])
def test_what_is_somebody_elses_is_not_replaced(base: Path, tmp_path: Path, name: str) -> None:
    """``sedge-cloud init`` calls its folder "state", too: a coordinator's database would be gone."""
    other = tmp_path / name
    other.parent.mkdir()
    other.write_text("secrets")
    for resume in (False, True):
        with pytest.raises(ConfigError, match=rf"--out: found '{other.parent}'"):
            set_up(CONFIG, base, tmp_path, resume, ignore)
    assert files(tmp_path) == {name: b"secrets"}


def test_a_start_that_fails_leaves_what_was_there(base: Path, out: Path) -> None:
    before = files(out)
    with pytest.raises(DataError):
        fresh(changed(data=DataConfig(dataset="nothing.npz")), base, out)
    assert files(out) == before


# What a job's name depends on.


def test_the_name_of_jobs_follows_from_all_that_their_outcome_depends_on(
    base: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = resumed(CONFIG, base, out)
    moved = replace(shared, shares=replace(shared.shares, train=shared.shares.train + 1))
    names = [shared.name("onnx"), shared.name("autograd"), moved.name("onnx")]
    for trainer in (TrainerConfig("onnx", "bf16"), TrainerConfig("onnx", tf32=True)):
        names.append(replace(shared, config=changed(trainer=trainer)).name("onnx"))
    assert shared.name("onnx") == names[0]
    # Neither names of strategies nor rounds nor workers: those may change in a resumed emulation.
    other = changed(workers=5, strategies=(LOCAL,))
    assert replace(shared, config=other).name("onnx") == names[0]

    def version(package: str) -> str:
        return "99"

    monkeypatch.setattr(module, "version", version)
    names.append(shared.name("onnx"))
    assert len(set(names)) == 6
    assert {len(name) for name in names} == {32}


def test_workers_know_how_many_share_a_gpu(base: Path, out: Path) -> None:
    shared = resumed(CONFIG, base, out)
    assert replace(shared, config=changed(workers=5)).setup.processes == 5


# Resuming.


def test_what_was_set_up_is_taken_as_it_is(base: Path, out: Path) -> None:
    before = files(out)
    shared = resumed(CONFIG, base, out)
    assert files(out) == before
    assert shared.shares.num_train(0) > 0


@pytest.mark.parametrize(
    "config",
    [changed(workers=9), changed(strategies=(LOCAL,)), changed(rounds=RoundsConfig(num_rounds=77))],
    ids=["workers", "strategies", "num_rounds"],
)
def test_some_things_may_change(config: EmulationConfig, base: Path, out: Path) -> None:
    assert resumed(config, base, out).config == config


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        (changed(devices=4), "devices"),
        (changed(data=DataConfig(dataset="mine.npz", alpha=6.0, min_examples=5)), "data"),
        (changed(seed=1, link="mosquitto"), "link, seed"),
        (changed(rounds=RoundsConfig(quorum=0.5)), "rounds"),
        (changed(trainer=TrainerConfig(backend="auto")), "trainer"),
    ],
)
def test_another_is_not_resumed(config: EmulationConfig, keys: str, base: Path, out: Path) -> None:
    before = files(out)
    with pytest.raises(ConfigError, match=f"--resume: found '{keys}'"):
        resumed(config, base, out)
    assert files(out) == before


def test_other_data_of_the_same_name_are_not_resumed(base: Path, tmp_path: Path) -> None:
    shutil.copy(base / "mine.npz", tmp_path)
    fresh(CONFIG, tmp_path, tmp_path / "out")
    np.savez(tmp_path / "mine.npz", x=np.ones((90, 6)), y=np.arange(90) % 3)
    with pytest.raises(ConfigError, match='--resume: found "data\'s content"'):
        resumed(CONFIG, tmp_path, tmp_path / "out")


def test_another_model_is_not_resumed(base: Path, tmp_path: Path) -> None:
    own = tmp_path / "a_model_of_mine.py"
    own.write_text("from torch import nn\ndef build(): return nn.Linear(6, 3)\n")
    shutil.copy(base / "mine.npz", tmp_path)
    config = changed(model=ModelConfig(factory="a_model_of_mine:build", batch_size=8))
    out = tmp_path / "out"
    fresh(config, tmp_path, out)
    resumed(config, tmp_path, out)
    own.write_text(own.read_text().replace("nn.Linear(6, 3)", "nn.Sequential(nn.Linear(6, 3))"))
    with pytest.raises(ConfigError, match='--resume: found "model\'s code"'):
        resumed(config, tmp_path, out)


@pytest.mark.slow
def test_a_second_emulation_has_its_export_from_the_cache(base: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    first = set_up(CONFIG, base, tmp_path / "first", False, ignore, fresh=True)
    second = set_up(CONFIG, base, tmp_path / "second", False, notes.append)
    assert (first.model.from_cache, second.model.from_cache) == (False, True)
    assert "exported and verified earlier (from the cache): mlp, 2,003 parameters" in notes
    assert resumed(CONFIG, base, tmp_path / "second").model == second.model


def test_targets_that_each_device_would_decline_are_refused_at_once(tmp_path: Path) -> None:
    code = "from torch import nn\ndef build(): return nn.Linear(6, 5)\n"
    (tmp_path / "five_outputs.py").write_text(code)
    np.savez(tmp_path / "mine.npz", x=np.ones((90, 6)), y=np.arange(90) / 2)
    model = ModelConfig(factory="five_outputs:build", batch_size=8)
    config = changed(model=model, data=DataConfig(dataset="mine.npz", split="iid"))
    expected = r"y has rows of shape \(1,\), but the model expects \(5,\)"
    with pytest.raises(DataError, match=expected):
        fresh(config, tmp_path, tmp_path / "out")


def test_killed_before_everything_was_set_up(base: Path, out: Path) -> None:
    """Without its mark a state is none: the export may be half of one."""
    (out / "state" / "fleet.json").unlink()
    with pytest.raises(ConfigError, match="--resume"):
        resumed(CONFIG, base, out)


TWIN = StrategyConfig(name="fedavg", label="fed avg?")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed(real=("pi-1",), link="mosquitto"), "strategies: found 2, expected one .* --only"),
        (changed(strategies=(FEDAVG, LOCAL, TWIN)), "label: found 'Fed Avg!', .* 'fed-avg'"),
    ],
    ids=["real devices belong to one", "each has its own files"],
)
def test_strategies_that_cannot_share_a_folder(
    config: EmulationConfig, message: str, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fresh(config, base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Strategies.


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("FedOBP", "fedobp"),
        ("Fed Avg!", "fed-avg"),
        ("  \u03b3 = 0.5 ", "0-5-cfef21"),
        ("\u03b4", "302712"),
        ("?", "fleet"),
        ("\u03b4" + "x" * 50, "x" * 33 + "-da3234"),
        ("x" * 50, "x" * 40),
        ("a/../../b", "a-b"),
    ],
)
def test_titles_become_names(title: str, expected: str) -> None:
    assert slug(title) == expected


Strategy = tuple[SharedSetup, StrategyRun]


@pytest.fixture
def strategy_run(base: Path, out: Path) -> Strategy:
    shared = resumed(CONFIG, base, out)
    return shared, strategy_run_of(shared, FEDAVG, resume=True)


def test_a_strategy_has_a_run_and_a_folder(strategy_run: Strategy) -> None:
    shared, one = strategy_run
    assert (one.title, one.folder) == ("Fed Avg!", shared.out / "state" / "runs" / "fed-avg")
    assert one.config == CONFIG.run(FEDAVG)


def test_what_has_ended_is_kept_and_its_state_goes(strategy_run: Strategy) -> None:
    shared, one = strategy_run
    (one.folder / "cache").mkdir(parents=True)
    assert finished(shared, one) is None
    result = result_of("Fed Avg!")
    keep(shared, one, result, b"theta")
    assert (shared.out / "models" / "fed-avg.bin").read_bytes() == b"theta"
    assert not one.folder.exists()
    assert finished(shared, one) == result
    assert finished(shared, replace(one, resumed=False)) is None


def test_a_result_is_that_of_its_run_alone(strategy_run: Strategy) -> None:
    """Resumed with more rounds, or other options under the same title, it is another run."""
    shared, one = strategy_run
    keep(shared, one, result_of("Fed Avg!"), b"theta")
    longer = replace(one, config=msgspec.structs.replace(one.config, num_rounds=99))
    assert finished(shared, longer) is None
    assert finished(shared, strategy_run_of(shared, LOCAL, resume=True)) is None


def test_a_damaged_result_is_named(strategy_run: Strategy) -> None:
    shared, one = strategy_run
    keep(shared, one, result_of("Fed Avg!"), b"theta")
    (path,) = (shared.out / "state" / "finished").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StorageError, match=f"{path.name}.*start with --fresh"):
        finished(shared, one)


def test_when_all_strategies_have_ended_only_results_are_left(strategy_run: Strategy) -> None:
    shared, one = strategy_run
    keep(shared, one, result_of("Fed Avg!"), b"theta")
    before = files(shared.out)
    clear_away(shared, [FEDAVG, LOCAL])
    assert files(shared.out) == before
    keep(shared, strategy_run_of(shared, LOCAL, resume=True), result_of("local_only"), b"theta")
    clear_away(shared, [FEDAVG, LOCAL])
    assert {path.name for path in shared.out.iterdir()} == {"bundle", "models"}


@pytest.mark.parametrize("label", ["data", "finished", "runs", "fleet.json"])
def test_a_label_may_be_the_name_of_a_folder_of_ours(base: Path, out: Path, label: str) -> None:
    strategy = StrategyConfig(name="fedavg", label=label)
    shared = resumed(changed(strategies=(strategy,)), base, out)
    one = strategy_run_of(shared, strategy, resume=True)
    (one.folder / "cache").mkdir(parents=True)
    keep(shared, one, result_of(label), b"theta")
    assert finished(shared, one) == result_of(label)
    assert len(Shares.open(shared.setup.data)) == 3
