"""fleet.toml: the examples load, and whatever does not fit is one clear error."""

from pathlib import Path

import msgspec
import pytest

from sedge_emulate.config import EmulationConfig, load_emulation
from sedge_protocol.errors import ConfigError
from sedge_protocol.sparse import ValueCoding

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEETS = sorted(path.name for path in EXAMPLES.glob("*.toml"))

GOOD = """\
devices = 4
[data]
dataset = "digits"
[rounds]
num_rounds = 3
[codec]
values = "int8"
[[strategies]]
name = "fedobp"
options = { quantile = 0.9 }
[[strategies]]
name = "fedavg"
label = "the other"
codec = { values = "fp32" }
"""


def load(tmp_path: Path, text: str) -> EmulationConfig:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return load_emulation(path)


@pytest.mark.parametrize("name", FLEETS)
def test_the_examples_load(name: str) -> None:
    config = load_emulation(EXAMPLES / name)
    assert config.devices >= 2
    for strategy in config.strategies:
        run = config.run(strategy)
        assert run.min_available_devices == config.devices
        assert run.seed == config.seed


def test_there_are_examples() -> None:
    assert {"demo.toml", "own_model.toml"} <= set(FLEETS)


def test_the_demo_compares_three_strategies() -> None:
    config = load_emulation(EXAMPLES / "demo.toml")
    assert [strategy.name for strategy in config.strategies] == ["fedobp", "fedavg", "local_only"]
    assert config.devices == 20


def test_what_a_file_leaves_out_has_a_default(tmp_path: Path) -> None:
    config = load(tmp_path, '[[strategies]]\nname = "fedavg"\n')
    assert (config.devices, config.seed, config.workers) == (20, 42, 0)
    assert (config.data.split, config.data.alpha) == ("dirichlet", 0.1)
    assert config.strategies[0].title == "fedavg"


def test_a_strategy_may_have_its_own_codec(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    runs = [config.run(strategy) for strategy in config.strategies]
    assert [run.codec.values for run in runs] == [ValueCoding.INT8, ValueCoding.FP32]
    assert [run.strategy for run in runs] == ["fedobp", "fedavg"]
    assert [s.title for s in config.strategies] == ["fedobp", "the other"]
    assert {run.num_rounds for run in runs} == {3}
    assert [dict(run.options) for run in runs] == [{"quantile": 0.9}, {}]


def test_a_fleet_of_one(tmp_path: Path) -> None:
    config = msgspec.structs.replace(load(tmp_path, GOOD), devices=1)
    run = config.run(config.strategies[0])
    assert (run.min_train_devices, run.min_available_devices) == (1, 1)
    run.check()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "fedobp"', 'name = "fedwhat"', "strategy: found 'fedwhat', expected one of"),
        ('label = "the other"', 'label = "fedobp"', "strategies.label: found 'fedobp'"),
        ("quantile = 0.9", "quantile = 2.0", "quantile: found 2.0, expected a number from 0 to 1"),
        ("quantile = 0.9", "quantil = 0.9", "quantil: found 0.9, expected an option of fedobp"),
        ("devices = 4", "devices = 0", "devices: found 0"),
        ("devices = 4", "devices = 100001", "devices: found 100001"),
        ("devices = 4", 'devices = "4"', "devices: found '4', expected a whole number"),
        ("devices = 4", "device = 4", "device"),
        ("num_rounds = 3", "num_rounds = 0", "rounds.num_rounds: found 0"),
        ("num_rounds = 3", "num_rounds = inf", "rounds.num_rounds: found inf"),
        ('values = "int8"', 'values = "int4"', "codec.values: found 'int4'"),
        ('dataset = "digits"', 'dataset = ""', "data.dataset"),
        ('dataset = "digits"', "alpha = 0", "data.alpha: found 0"),
        ('dataset = "digits"', "test_fraction = 1.0", "data.test_fraction: found 1.0"),
        ('dataset = "digits"', 'split = "iid"', "data.split: found 'iid'"),
        ("[codec]", "[model]\nbatch_size = 0\n[codec]", "model.batch_size: found 0"),
        ("[rounds]", "[rounds]\ndeadline_s = 0.5", "rounds.deadline_s: found 0.5"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path / 'fleet.toml'}: ")
    assert message in str(caught.value)


def test_no_strategies(tmp_path: Path) -> None:
    for text in ("", "strategies = []\n"):
        with pytest.raises(ConfigError, match="strategies"):
            load(tmp_path, text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: file: "):
        load_emulation(tmp_path / "missing.toml")
