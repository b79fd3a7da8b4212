"""fleet.toml: the examples load, and whatever does not fit is one clear error."""

import re
import sys
from pathlib import Path

import msgspec
import pytest

from sedge_cloud.run_file import check_run
from sedge_emulate.attack import AttackConfig
from sedge_emulate.config import EmulationConfig, load_emulation
from sedge_protocol.codec import ValueCoding
from sedge_protocol.errors import ConfigError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FLEETS = sorted({path.name for path in EXAMPLES.glob("*.toml")} - {"own_model_run.toml"})

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
        assert 2 <= run.min_available_devices <= config.devices
        assert run.seed == config.seed


def test_the_demo_compares_three_strategies() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (command,) = re.findall(r"sedge-emulate run (\S+) --out runs/demo", makefile)
    config = load_emulation(ROOT / command)
    assert [strategy.name for strategy in config.strategies] == ["fedavg", "fedobp", "local_only"]
    assert (config.devices, config.link, config.data.dataset) == (30, "broker", "phones")


def test_what_a_file_leaves_out_has_a_default(tmp_path: Path) -> None:
    config = load(tmp_path, '[[strategies]]\nname = "fedavg"\n')
    assert config.strategies[0].title == "fedavg"
    assert config.run(config.strategies[0]).min_available_devices == 20


def test_a_strategy_may_have_its_own_codec(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    runs = [config.run(strategy) for strategy in config.strategies]
    assert [run.codec.values for run in runs] == [ValueCoding.INT8, ValueCoding.FP32]
    assert [run.strategy for run in runs] == ["fedobp", "fedavg"]
    assert [s.title for s in config.strategies] == ["fedobp", "the other"]
    assert {run.num_rounds for run in runs} == {3}
    assert [dict(run.options) for run in runs] == [{"quantile": 0.9}, {}]


def test_a_strategy_may_have_its_own_training_patches_and_broadcast(tmp_path: Path) -> None:
    text = GOOD.replace("[codec]", '[patch]\nvalues = "bf16"\n[broadcast]\nfraction = 0.1\n[codec]')
    text += 'training = { momentum = 0.5 }\npatch = { values = "int8" }\n'
    text += "broadcast = { fraction = 0.2 }\n"
    config = load(tmp_path, text)
    runs = [config.run(strategy) for strategy in config.strategies]
    assert [run.patch.values for run in runs] == [ValueCoding.BF16, ValueCoding.INT8]
    assert [run.training.momentum for run in runs] == [0.0, 0.5]
    assert [run.broadcast.fraction for run in runs] == [0.1, 0.2]


def test_how_far_devices_are_trusted(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD.replace("[codec]", "[robust]\nclip = 2\n[codec]"))
    assert [config.run(s).robust.clip for s in config.strategies] == [2.0, 2.0]


def test_who_is_hostile(tmp_path: Path) -> None:
    text = GOOD.replace("[codec]", "[attack]\ndevices = 2\nscale = -1\n[codec]")
    text += 'attack = { devices = 1, claim = 9, name = "hidden" }\nrobust = { clip = 0 }\n'
    config = load(tmp_path, text)
    assert [config.attack_under(s) for s in config.strategies] == [
        AttackConfig(2, -1.0), AttackConfig(1, claim=9, name="hidden")
    ]  # fmt: skip
    assert [config.run(s).robust.clip for s in config.strategies] == [1.0, 0.0]
    with pytest.raises(ConfigError, match=r"attack.devices: found 5, expected at most devices = 4"):
        load(tmp_path, text.replace("devices = 1,", "devices = 5,"))


def test_a_strategy_lies_beside_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = "from sedge_cloud.strategies.fedavg import FedAvg\nclass Beside(FedAvg): ...\n"
    (tmp_path / "strategy_beside.py").write_text(source)
    own = GOOD.replace('name = "fedavg"', 'name = "strategy_beside:Beside"')
    path = list(sys.path)
    config = load(tmp_path, own)
    assert config.strategies[1].name == "strategy_beside:Beside"
    # Last: what it imports later is found, and hides nothing.
    assert sys.path == [*path, str(tmp_path)]
    load(tmp_path, own)
    assert len(sys.path) == len(path) + 1
    with pytest.raises(ConfigError, match="strategy: found 'strategy_elsewhere:Beside'"):
        load(tmp_path, own.replace("strategy_beside", "strategy_elsewhere"))
    assert len(sys.path) == len(path) + 1


def test_a_fleet_of_one(tmp_path: Path) -> None:
    config = msgspec.structs.replace(load(tmp_path, GOOD), devices=1)
    run = config.run(config.strategies[0])
    assert (run.min_train_devices, run.min_available_devices) == (1, 1)
    check_run(run)


FAULTY = """\
devices = 10
link = "mqtt://broker.example:1884"
real = ["pi-1", "pi-2"]
[rounds]
fraction_available = 0.5
fraction_evaluate = 0.25
[broadcast]
values = "bf16"
fraction = 0.1
[trainer]
backend = "vectorised"
precision = "bf16"
device = "auto"
graphs = true
convolutions = "unfold"
[churn]
join_within_s = 60
leave_every_s = 86400
[[classes]]
name = "mains"
[[classes]]
name = "solar"
share = 3
step_ms = 80
jitter = 0.2
straggler_share = 0.05
straggler_factor = 6
reboot_every_s = 7200
disk_full_every_s = 9000
disk_full_s = 300
[classes.link]
delay_ms = 100
loss = 0.01
up_kbit_s = 64
cut_every_s = 600
cut_s = 60
[classes.duty]
period_s = 86400
on_s = 30000
[[strategies]]
name = "fedavg"
"""


def test_real_devices_are_of_the_fleet_too(tmp_path: Path) -> None:
    config = load(tmp_path, FAULTY)
    run = config.run(config.strategies[0])
    assert run.min_available_devices == 6  # half of twelve
    assert run.fraction_evaluate == 0.25
    assert (run.broadcast.values, run.broadcast.fraction) == (ValueCoding.BF16, 0.1)


def test_links(tmp_path: Path) -> None:
    for link in ("memory", "broker", "mosquitto", "amqtt", "mqtt://h", "mqtts://h:8883"):
        text = f'link = "{link}"\n[[strategies]]\nname = "fedavg"\n'
        assert load(tmp_path, text).link == link


LINK, PARTITION = 'link = "mqtt://broker.example:1884"', 'split = "given"\npartition = "p.npy"\n'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "fedobp"', 'name = "fedwhat"', "strategy: found 'fedwhat', expected one of"),
        ('label = "the other"', 'label = "fedobp"', "strategies.label: found 'fedobp'"),
        ("quantile = 0.9", "quantile = 2.0", "quantile: found 2.0, expected `float` <= 1.0"),
        ("quantile = 0.9", "quantil = 0.9", "quantil: found 0.9, expected an option of fedobp"),
        ('dataset = "digits"', 'split = "given"', "data.partition: found '', expected a file (.n"),
        ('dataset = "digits"', 'partition = "p.npy"', "expected none unless split = 'given'"),
        ('dataset = "digits"', f"{PARTITION}examples = 9", "data.examples: found 9, expected 0"),
        ("[codec]", "[model]\nwidths = [0, 0.5, 0.25]\n[codec]", "widths: found [0.0, 0.5, 0.25]"),
        ("[codec]", "[model]\nwidths = [0.5]\n[codec]", "model.widths: found [0.5], expected incr"),
        ("[codec]", "[model]\nwidths = [0, 0.5, 0.5]\n[codec]", "widths: found [0.0, 0.5, 0.5]"),
        ("[codec]", '[model]\nname = "mlp"\nfactory = "a:b"\n[codec]', "model.name: found 'mlp'"),
        (LINK, 'link = "tcp://h"', "link: found 'tcp://h', expect"),
        (LINK, 'link = "mqtt://"', "memory, broker, mosquitto,"),
        (LINK, 'link = "memory"', "real devices can join"),
        ('real = ["pi-1", "pi-2"]', 'real = ["pi-1", "pi-1"]', "real: found 'pi-1', expected each"),
        ('real = ["pi-1", "pi-2"]', 'real = ["device-3"]', "real: found 'device-3'"),
        ('name = "solar"', 'name = "mains"', "classes.name: found 'mains', expected each name on"),
        ("cut_every_s = 600", "cut_every_s = 0.5", "classes[1].link.cut_every_s: found 0.5, expec"),
        ("reboot_every_s = 7200", "reboot_every_s = 0.1", "classes[1].reboot_every_s: found 0.1"),
        ("cut_s = 60", "cut_s = 0", "classes[1].link.cut_s: found 0.0, expected above 0"),
        ("cut_every_s = 600", "", "classes[1].link.cut_every_s: found 0.0, expected above 0"),
        ("disk_full_s = 300", "", "classes[1].disk_full_s: found 0.0, expected above 0"),
        ("on_s = 30000", "on_s = 86401", "classes[1].duty.on_s: found 86401.0, expected at most"),
        ("leave_every_s = 86400", "leave_every_s = 0.5", "churn.leave_every_s: found 0.5"),
        ("fraction_available = 0.5", "", "rounds.fraction_available: found 1.0, expected less"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    (text,) = (text for text in (GOOD, FAULTY) if text.count(old) == 1)  # the one that has it
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path / 'fleet.toml'}: ")
    assert message in str(caught.value)


def test_a_command_line_is_checked_without_a_file(tmp_path: Path) -> None:
    config = msgspec.structs.replace(load(tmp_path, FAULTY), link="memory")
    with pytest.raises(ConfigError, match=r"^link: found 'memory'"):
        config.check()
