"""``sedge-emulate``: a whole emulation through its command line, and every way to ask for a wrong one.

Real agents, a real coordinator, a model that is really exported, virtual time or a real Mosquitto (they end
in the same bytes: virtual/test_virtual_fleet.py); six devices share 600 handwritten digits, two rounds for
each of four strategies. A seventh device, a real one, joins them.
"""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fleet import failing
from tools.bench.parts.real_fleet import wait_until

from sedge_emulate import run, strategy_run
from sedge_emulate.__main__ import main
from sedge_emulate.config import StrategyConfig
from sedge_emulate.data.datasets import digits
from sedge_emulate.emulation import SharedSetup
from sedge_emulate.result import Result, StrategyResult, read_json
from sedge_protocol.errors import StorageError
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.wire.bundle import load, pack

DEVICES = 6
ROUNDS = 2
FLEET = """\
devices = 6
workers = 1
[data]
dataset = "digits"
examples = 600
alpha = 1.0
[rounds]
num_rounds = 2
[trainer]
backend = "onnx"
[training]
learning_rate = 0.05
momentum = 0.7
[[strategies]]
name = "fedobp"
label = "FedOBP"
options = { quantile = 0.99 }
[[strategies]]
name = "fedobp"
label = "nothing personal"
options = { quantile = 1.0 }
[[strategies]]
name = "fedavg"
label = "FedAvg"
[[strategies]]
name = "local_only"
label = "local only"
"""


@dataclass(frozen=True)
class Emulation:
    """One emulation: its folder and its result."""

    out: Path
    result: Result

    def __getitem__(self, name: str) -> StrategyResult:
        return next(s for s in self.result.strategies if s.name == name)

    def final_model(self, slug: str) -> bytes:
        """The bytes of a strategy's last global model."""
        return (self.out / "models" / f"{slug}.bin").read_bytes()


def emulate(folder: Path, *words: str, text: str = FLEET) -> Emulation:
    """Run the fleet, to its end."""
    fleet, out = folder / "fleet.toml", folder / "out"
    fleet.write_text(text)
    assert main(["run", str(fleet), "--out", str(out), *words]) == 0
    assert multiprocessing.active_children() == []
    return Emulation(out, read_json(out / "result.json"))


@pytest.fixture(scope="module")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Emulation:
    return emulate(tmp_path_factory.mktemp("emulation"))


@pytest.mark.fleet
def test_the_result_describes_what_was_run(emulation: Emulation) -> None:
    result = emulation.result
    assert (result.devices, result.seed, result.dataset) == (DEVICES, 42, "digits")
    assert result.link == "memory"
    assert result.command.startswith("sedge-emulate run ")
    assert (result.model.name, result.model.parameters) == ("mlp", 15010)
    assert result.machine is not None and result.machine.versions["onnxruntime"]
    names = [strategy.name for strategy in result.strategies]
    assert names == ["FedOBP", "nothing personal", "FedAvg", "local only"]
    assert emulation["FedOBP"].options == {"quantile": 0.99}
    settings = result.settings
    assert (settings["devices"], settings["data"]["alpha"]) == (DEVICES, 1.0)
    assert settings["rounds"]["deadline_s"] == 600.0  # by default
    assert [strategy["label"] for strategy in settings["strategies"]] == names
    assert len(bytes.fromhex(result.data_sha256)) == 32
    assert {path.name for path in emulation.out.iterdir()} == {
        "bundle", "models", "lock", "result.json", "report.html"
    }  # fmt: skip
    page = (emulation.out / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>") and all(name in page for name in names)


@pytest.mark.fleet
def test_every_device_took_part_in_every_round_and_training_helps(emulation: Emulation) -> None:
    for strategy in emulation.result.strategies:
        assert [r.round for r in strategy.rounds] == [1, 2]
        assert all(r.num_updates == DEVICES for r in strategy.rounds)
        assert [d.device for d in strategy.devices] == [f"device-{i}" for i in range(DEVICES)]
        assert sum(d.num_train + d.num_test for d in strategy.devices) == 600
        for spread in (strategy.before, strategy.after):
            assert 0 <= spread.min <= spread.worst_tenth <= spread.mean <= spread.max <= 1
        first, last = strategy.rounds
        assert first.before_mean < 0.2 < first.after_mean
        assert last.before_mean > first.before_mean
        assert strategy.after.mean > first.before_mean + 0.2


@pytest.mark.fleet
def test_the_global_model_leaves_the_coordinator_once_for_all(emulation: Emulation) -> None:
    """Its bytes up are at most one pass over the bundle and a whole model; every device receives them."""
    bundle, theta = load(emulation.out / "bundle")
    blobs = len(pack(bundle)) + 4 * theta.size  # float32; on its grid the model is smaller
    for name in ("FedOBP", "FedAvg"):
        traffic = emulation[name].bytes
        orders = DEVICES * (ROUNDS + 1) * 2000
        assert traffic.coordinator_up < blobs + orders
        assert traffic.device_down > 2 * traffic.coordinator_up


@pytest.mark.fleet
def test_devices_send_their_updates_and_little_else(emulation: Emulation) -> None:
    for strategy in emulation.result.strategies:
        traffic = strategy.bytes
        updates = DEVICES * ROUNDS * traffic.update_payload_mean
        assert updates <= traffic.device_up <= 1.1 * updates + DEVICES * 4000
        # What they send is what the coordinator gets, but for the broker's acknowledgements.
        assert traffic.coordinator_down == pytest.approx(traffic.device_up, rel=0.25)
        assert traffic.dense_update == 60040
        assert sum(r.bytes_up for r in strategy.rounds) < traffic.device_up
    assert emulation["local only"].bytes.update_payload_mean < 500


@pytest.mark.fleet
def test_strategies_differ_by_what_is_personal(emulation: Emulation) -> None:
    none, fedavg, local = (emulation[n] for n in ("nothing personal", "FedAvg", "local only"))
    assert none.devices == fedavg.devices
    assert [(r.before_mean, r.after_mean, r.train_loss) for r in none.rounds] == [
        (r.before_mean, r.after_mean, r.train_loss) for r in fedavg.rounds
    ]
    assert none.personal == []
    assert emulation.final_model("nothing-personal") == emulation.final_model("fedavg")
    personal = emulation["FedOBP"].personal
    # One percent of 15,010 by device: quantile 0.99 leaves 151 above, fewer where scores on the grid tie.
    assert 145 < sum(share.elements for share in personal) <= 151
    assert sum(share.share for share in personal) == pytest.approx(1)
    assert emulation.final_model("fedobp") != emulation.final_model("fedavg")
    assert local.rounds[1].before_mean == local.rounds[0].after_mean
    assert local.before.mean == pytest.approx(local.rounds[1].after_mean)


@pytest.mark.fleet
def test_the_command_line_changes_the_fleet(emulation: Emulation, tmp_path: Path) -> None:
    words = ("--only", "FedAvg", "--seed", "1", "--rounds", "1", "--devices", "3")
    other = emulate(tmp_path, *words, text=FLEET.replace('backend = "onnx"', 'backend = "auto"'))
    assert [s.name for s in other.result.strategies] == ["FedAvg"]
    assert (other.result.seed, other.result.devices) == (1, 3)
    assert len(other["FedAvg"].rounds) == 1
    assert other["FedAvg"].rounds[0].before_mean != emulation["FedAvg"].rounds[0].before_mean
    engine = other["FedAvg"].engine
    assert engine is not None
    assert engine.trainer == "onnx"  # a model without convolutions


@pytest.mark.fleet
def test_every_device_a_group_and_a_test_set_for_all(tmp_path: Path) -> None:
    found = digits()
    group = np.arange(len(found.targets)) % 7
    np.savez(tmp_path / "own.npz", x=found.inputs, y=found.targets, group=group)
    data = 'dataset = "own.npz"\nsplit = "natural"\ncentral_test = 0.2\nexamples = 600'
    text = ONE_STRATEGY.replace('dataset = "digits"\nexamples = 600', data)
    result = emulate(tmp_path, text=text).result
    assert result.split == (
        "480 examples of own.npz on 6 devices, each with its own group of the data, "
        "and 120 to test all models on"
    )
    (central,) = (strategy.central for strategy in result.strategies)
    assert central is not None
    assert (central.examples, central.global_model is None) == (120, False)
    assert central.before.min < central.before.max  # each has parameters of its own


@pytest.mark.fleet
def test_several_seeds_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet, out = tmp_path / "fleet.toml", tmp_path / "out"
    fleet.write_text(ONE_STRATEGY)
    words = ["run", str(fleet), "--out", str(out), "--rounds", "1"]
    assert main([*words, "--seeds", "1,2"]) == 0
    assert "over 2 seeds (1, 2)" in capsys.readouterr().out
    found = [read_json(out / f"seed-{seed}" / "result.json") for seed in (1, 2)]
    assert [result.seed for result in found] == [1, 2]
    assert found[0].data_sha256 == found[1].data_sha256
    # A third one later: the first two are there already.
    assert main([*words, "--seeds", "1,2,3", "--resume"]) == 0
    said = capsys.readouterr().out
    assert "seed 3" in said and "seed 2\n" not in said
    assert "over 3 seeds (1, 2, 3)" in said
    assert main(["compare", str(out), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["strategies"]
    means = [strategy.before.mean for seed in (1, 2, 3)
             for strategy in read_json(out / f"seed-{seed}" / "result.json").strategies]  # fmt: skip
    assert row["figures"]["before"]["mean"] == pytest.approx(sum(means) / 3)


Error = Callable[..., str]


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Error:
    """What a command that must fail says, which is one line."""

    def said(*words: str, status: int = 2) -> str:
        assert main(["run", *words]) == status
        lines = capsys.readouterr().err.splitlines()
        assert "Traceback" not in "".join(lines)
        (line,) = (line for line in lines if line.startswith("sedge-emulate: "))
        return line

    return said


# Real processes: a device that joins, and Ctrl-C.

ONE_STRATEGY = FLEET.partition('[[strategies]]\nname = "fedobp"\nlabel = "nothing')[0]
INTERRUPTIBLE = """
import signal, sys
from sedge_emulate.__main__ import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it,
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup's this
    sys.exit(main(sys.argv[1:]))
"""


def begin(folder: Path, text: str, *words: str) -> subprocess.Popen[str]:
    """Begin an emulation in a process group of its own."""
    (folder / "fleet.toml").write_text(text)
    (folder / "tmp").mkdir()
    script = folder / "emulate.py"
    script.write_text(INTERRUPTIBLE)
    return subprocess.Popen(
        [sys.executable, script, "run", "fleet.toml", "--out", "out", *words], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder / "tmp")},
    )  # fmt: skip


def processes() -> list[tuple[int, int, int]]:
    """Each process that does not only wait to be fetched, its parent and its group."""
    found: list[tuple[int, int, int]] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, group, *_ = path.read_text().rpartition(")")[2].split()
            if state != "Z":
                found.append((int(path.parent.name), int(parent), int(group)))
    return found


def is_broker(pid: int) -> bool:
    return b"mosquitto.conf" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.fleet
def test_a_real_device_takes_part_in_every_round(tmp_path: Path) -> None:
    text = f'link = "mosquitto"\nreal = ["pi-1"]\n{ONE_STRATEGY}'
    home = tmp_path / "out" / "join" / "pi-1"
    command = [sys.executable, "-m", "sedge_edge", "-c", str(home / "edge.toml")]
    with begin(tmp_path, text) as process:
        secret = home / "secret"
        wait_until(lambda: secret.exists() or process.poll() is not None, 60, "the secret")
        dataset = digits()
        np.savez(home / "train.npz", x=dataset.inputs[:80], y=dataset.targets[:80])
        with (tmp_path / "edge.log").open("w") as log:
            device = subprocess.Popen([*command, "run"], stdout=log, stderr=log)
        output, _ = process.communicate(timeout=120)
    device.terminate()
    assert device.wait(20) == 0
    assert process.returncode == 0, output
    assert "pi-1 can join from out/join/pi-1" in output
    strategy = read_json(tmp_path / "out" / "result.json").strategies[0]
    assert [r.num_updates for r in strategy.rounds] == [DEVICES + 1] * ROUNDS
    assert all(r.late == 0 for r in strategy.rounds)
    assert [d.device for d in strategy.devices] == [f"device-{i}" for i in range(DEVICES)]
    status = subprocess.run([*command, "status"], capture_output=True, text=True, check=True)
    assert f"run run: last round {ROUNDS + 1}, has a personal model" in status.stdout


@pytest.mark.fleet
@pytest.mark.parametrize("link", ["memory", "mosquitto"])
def test_what_ends_it_ends_every_process(
    link: str, emulation: Emulation, tmp_path: Path, error: Error
) -> None:
    """As a terminal sends Ctrl-C, to emulation and workers; as ssh sends SIGHUP."""
    said: list[str] = []
    with begin(tmp_path, ONE_STRATEGY, "--link", link, "--rounds", "60") as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "round 1/60" in line:
                break
        children = [pid for pid, parent, _ in processes() if parent == process.pid]
        brokers = [pid for pid in children if is_broker(pid)]
        if link == "memory":
            os.killpg(process.pid, signal.SIGINT)
        else:  # to all at once a SIGHUP also ends Python's own helper processes, and they complain
            os.kill(process.pid, signal.SIGHUP)
        rest, _ = process.communicate(timeout=30)
    output = "".join(said) + rest
    assert process.returncode == 130, output
    assert rest.splitlines()[-1] == "sedge-emulate: interrupted"
    assert "Traceback" not in output and "leaked" not in output
    pid = process.pid
    wait_until(lambda: pid not in {group for *_, group in processes()}, 60, "all of them end")
    assert len(brokers) == (link == "mosquitto")  # it has a session of its own
    assert not any(Path(f"/proc/{pid}").exists() for pid in brokers)
    assert list((tmp_path / "tmp").glob("sedge-broker-*")) == []
    assert not (tmp_path / "out" / "result.json").exists()
    if link == "memory":  # and nothing is lost, not even by asking for it anew
        out = tmp_path / "out"
        state = {path for path in (out / "state").rglob("*") if path.is_file()}
        refused = error(str(tmp_path / "fleet.toml"), "--out", str(out))
        assert "expected --resume to continue the unfinished emulation in it, or --fresh" in refused
        assert {path for path in (out / "state").rglob("*") if path.is_file()} == state
        resumed = emulate(tmp_path, "--resume", text=ONE_STRATEGY)
        assert resumed.final_model("fedobp") == emulation.final_model("fedobp")


TWO = ONE_STRATEGY + '[[strategies]]\nname = "fedavg"\nlabel = "B"\n'


@pytest.mark.fleet
def test_nothing_is_cleared_away_before_the_results_are_written(
    tmp_path: Path, error: Error, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the disk refuses them a resumed start needs seconds and not the whole emulation again."""
    fleet, out = tmp_path / "fleet.toml", tmp_path / "out"
    fleet.write_text(ONE_STRATEGY)
    with failing(run, "write_json", StorageError("the disk is full")):
        assert "full" in error(str(fleet), "--out", str(out), status=4)
    assert (out / "state").exists()
    emulate(tmp_path, "--resume", text=ONE_STRATEGY)
    assert "FedOBP round" not in capsys.readouterr().out
    assert not (out / "state").exists()


@pytest.mark.fleet
def test_a_fresh_start_discards_what_was_stopped(
    tmp_path: Path, error: Error, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several seeds, each is looked at before the first is run."""
    (tmp_path / "fleet.toml").write_text(ONE_STRATEGY)
    words = [str(tmp_path / "fleet.toml"), "--out", str(tmp_path / "out"), "--rounds", "1"]
    with failing(strategy_run, "keep", KeyboardInterrupt()):
        assert main(["run", *words, "--seeds", "2"]) == 130
    assert capsys.readouterr().err == "sedge-emulate: interrupted\n"
    said = error(*words, "--seeds", "1,2")
    assert "out/seed-2', expected --resume" in said
    assert not (tmp_path / "out" / "seed-1").exists()
    assert main(["run", *words, "--seeds", "2", "--fresh"]) == 0
    assert "jobs are already done" not in capsys.readouterr().out
    assert not (tmp_path / "out" / "seed-2" / "state").exists()


@pytest.mark.fleet
def test_what_another_strategy_goes_on_from_is_not_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the second of two, and resumed with the first alone."""

    def killed(shared: SharedSetup, strategy: StrategyConfig, *arguments: Any) -> StrategyResult:
        if strategy.label == "B":
            raise KeyboardInterrupt
        return strategy_run.result_of(shared, strategy, *arguments)

    (tmp_path / "fleet.toml").write_text(TWO)
    words = ["run", str(tmp_path / "fleet.toml"), "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr("sedge_emulate.run.result_of", killed)
        assert main(words) == 130
    emulate(tmp_path, "--resume", "--only", "FedOBP", text=TWO)
    result = emulate(tmp_path, "--resume", text=TWO).result
    assert [strategy.name for strategy in result.strategies] == ["FedOBP", "B"]
    assert not (tmp_path / "out" / "state").exists()


# What cannot be run.

MODEL = '[model]\nfactory = "{}"\n[rounds]'
MODULE = """
import numpy as np
from torch import nn

number = 5

def build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
def three(): return 3
def raises(): raise RuntimeError("no weights here")
def leaves(): raise SystemExit(0)
def needs(x): return build()
def wrong(): return nn.Sequential(nn.Flatten(), nn.Linear(65, 10))

def huge():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(300, 5)) * 1e25).astype("f4"), rng.integers(0, 3, 300)

def negative():
    return np.zeros((300, 5), "f4"), np.arange(300) % 3 - 1
"""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fleet file of one strategy, beside a module of the user's, in a folder of its own."""
    (tmp_path / "own_module.py").write_text(MODULE)
    (tmp_path / "broken_module.py").write_text("def (")
    path = tmp_path / "fleet.toml"
    path.write_text(ONE_STRATEGY)
    monkeypatch.chdir(tmp_path)
    for name in ("own_module", "broken_module"):  # each test has its own file of this name
        monkeypatch.delitem(sys.modules, name, raising=False)
    return path


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--only", "nobody"], 2, "--only: found 'nobody', expected one of FedOBP"),
        (["--only", "FedOBP", "--only", "x"], 2, "--only: found 'x'"),
        (["--devices", "0"], 2, "devices: found 0, expected a whole number >= 1"),
        (["--devices", "100001"], 2, "devices: found 100001, expected"),
        (["--rounds", "0"], 2, "rounds.num_rounds: found 0, expected"),
        (["--seed", "-1"], 2, "seed: found -1, expected"),
        (["--seeds", "4294967296"], 2, "seed: found 4294967296, expected"),
        (["--devices", "300"], 3, "600 examples, expected 10 or more for each of 300 devices"),
        (["--link", "rabbitmq"], 2, "link: found 'rabbitmq', expected memory, broker, mosquitto"),
        (["--resume"], 2, "--resume: found 'runs/latest/state', expected the state of an interru"),
        (["--out", "own_module.py"], 4, "make folder own_module.py: File exists"),
        (["--out", "own_module.py/out"], 4, "make folder own_module.py/out: Not a directory"),
    ],
)
def test_bad_arguments(fleet: Path, words: list[str], status: int, text: str, error: Error) -> None:
    assert text in error(str(fleet), *words, status=status)


def test_no_fleet_file(tmp_path: Path, error: Error) -> None:
    assert "missing.toml: file: No such" in error(str(tmp_path / "missing.toml"))


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        ("own_module:nothing", "own_module has no 'nothing'"),
        ("own_module", "expected module:function"),
        ("no_module:build", "no no_module.py in"),
        ("broken_module:build", "SyntaxError"),
        (":build", "expected module:function"),
        (".own_module:build", "TypeError"),
        ("own_module:number", "TypeError: 'int' object is not callable"),
        ("own_module:needs", "missing 1 required positional argument"),
        ("own_module:raises", "RuntimeError: no weights here"),
        ("own_module:leaves", "SystemExit"),
        ("own_module:three", "expected module:function that gives a torch.nn.Module, not int"),
    ],
)
def test_a_factory_that_gives_no_model(fleet: Path, factory: str, text: str, error: Error) -> None:
    fleet.write_text(fleet.read_text().replace("[rounds]", MODEL.format(factory)))
    said = error(str(fleet))
    assert said.startswith(f"sedge-emulate: model.factory: found '{factory}', ")
    assert text in said


def test_a_model_that_does_not_fit(fleet: Path, error: Error) -> None:
    fleet.write_text(fleet.read_text().replace("[rounds]", MODEL.format("own_module:wrong")))
    assert "shapes cannot be multiplied" in error(str(fleet), status=3)


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        ("missing.npz", "missing.npz: No such file or directory"),
        ("own_module:nothing", "has no 'nothing'"),
        ("own_module:negative", "negative: y[0] is -1, but the model has classes 0 to 1"),
        ("own_module:number", "'int' object is not callable"),
    ],
)
def test_data_that_is_not_there(fleet: Path, dataset: str, text: str, error: Error) -> None:
    fleet.write_text(fleet.read_text().replace('"digits"', f'"{dataset}"').replace("= 600", "= 0"))
    assert text in error(str(fleet), status=3)


@pytest.mark.fleet
def test_a_fleet_that_cannot_train_says_so(fleet: Path, error: Error) -> None:
    """Every device declines: there is nothing to report, and no bug to look for."""
    text = fleet.read_text().replace('"digits"', '"own_module:huge"').replace("= 600", "= 0")
    fleet.write_text(text)
    said = error(str(fleet), status=3)
    assert said.startswith("sedge-emulate: FedOBP: 0 of 6 devices sent an update that counts")
    reason = r"'TrainingDiverged: .* the loss is nan' \(5 of 6\)$"
    assert re.search(f"6 declined, 0 rejected; most declined because {reason}", said)
    assert not (fleet.parent / "runs" / "latest" / "result.json").exists()


def test_a_trainer_that_there_is_not(fleet: Path, error: Error) -> None:
    fleet.write_text(fleet.read_text().replace('backend = "onnx"', 'backend = "abacus"'))
    said = error(str(fleet))
    assert said.startswith("sedge-emulate: trainer: found 'abacus', expected one of auto, ")
    assert multiprocessing.active_children() == []


def test_two_emulations_in_one_folder(fleet: Path, error: Error) -> None:
    out = fleet.parent / "out"
    with lock_folder(out):
        said = error(str(fleet), "--out", str(out), status=4)
    assert said == f"sedge-emulate: {out}: another process is using this state folder"
    assert [path.name for path in out.iterdir()] == ["lock"]


@pytest.mark.fleet
def test_what_has_ended_leaves_nothing_to_resume(emulation: Emulation, error: Error) -> None:
    fleet = emulation.out.parent / "fleet.toml"
    said = error(str(fleet), "--out", str(emulation.out), "--resume")
    assert said.startswith("sedge-emulate: --resume: found ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_interrupted(
    number: int, fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: object) -> object:
        os.kill(os.getpid(), number)
        time.sleep(5)
        raise AssertionError("it goes on")

    def nothing(number: int, frame: object) -> None:
        """As where nohup had the signal ignored."""

    monkeypatch.setattr("sedge_emulate.run.load_emulation", interrupt)
    before = signal.signal(number, nothing)
    try:
        assert main(["run", str(fleet)]) == 130
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == "sedge-emulate: interrupted\n"


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys\nfrom sedge_emulate.__main__ import main\ntry:\n    main(['--help'])\n"
    script += "finally:\n    print(sorted({'torch', 'jinja2', 'onnx'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.startswith("usage: sedge-emulate")
    assert found.stdout.endswith("[]\n")


@pytest.mark.parametrize("words", [[], ["run"], ["walk"], ["run", "x.toml", "--devices", "many"]])
def test_bad_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage: sedge-emulate" in capsys.readouterr().err
