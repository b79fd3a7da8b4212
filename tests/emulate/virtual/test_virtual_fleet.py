"""Fleets in virtual time, through the command line: the same bytes always, whatever happens to the process.

Real coordinator and agent cores and real training on real digits; only time and the wire are virtual.
"""

import os
import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fleet import begin_emulation

from sedge_emulate.result import Result, StrategyResult, read_json
from sedge_protocol.importance import kept
from sedge_protocol.wire.bundle import load

pytestmark = pytest.mark.fleet

HEAD = """\
devices = 8
workers = 2
[data]
dataset = "digits"
examples = 600
alpha = 1.0
min_examples = 10
[model]
batch_size = 16
"""
QUIET = (
    HEAD
    + """
[rounds]
num_rounds = 3
fraction_train = 0.5
[broadcast]
values = "bf16"
fraction = 0.2
[training]
learning_rate = 0.05
momentum = 0.7
[codec]
values = "bf16"
fraction = 0.1
[[strategies]]
name = "fedobp"
label = "FedOBP"
options = { quantile = 0.99 }
[[strategies]]
name = "local_only"
label = "local only"
[[strategies]]
name = "fedobp"
label = "picked"
options = { quantile = 0.9, holdout = 0.2 }
"""
)
FAULTS = (
    HEAD
    + """
[rounds]
num_rounds = 12
fraction_available = 0.4
fraction_train = 0.8
quorum = 0.7
deadline_s = 120
[broadcast]
values = "bf16"
fraction = 0.3
[training]
local_epochs = 3
learning_rate = 0.05
momentum = 0.7
[codec]
values = "int8"
fraction = 0.2
[[classes]]
name = "mains"
step_ms = 200
jitter = 0.3
[classes.link]
delay_ms = 20
jitter_ms = 20
cut_every_s = 200
cut_s = 20
[[classes]]
name = "solar"
step_ms = 700
straggler_share = 0.3
straggler_factor = 10
reboot_every_s = 400
disk_full_every_s = 300
disk_full_s = 30
[classes.link]
delay_ms = 100
jitter_ms = 300
loss = 0.05
corrupt = 0.02
duplicate = 0.05
up_kbit_s = 100
down_kbit_s = 400
cut_every_s = 90
cut_s = 20
[classes.duty]
period_s = 300
on_s = 200
[churn]
join_within_s = 30
leave_every_s = 50000
[[strategies]]
name = "fedavg"
label = "FedAvg"
"""
)


def emulate(folder: Path, text: str, *words: str, hash_seed: str = "random") -> Result:
    """Run an emulation to its end."""
    process = begin_emulation(folder, text, *words, PYTHONHASHSEED=hash_seed)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return read_json(folder / "out" / "result.json")


def models(folder: Path) -> dict[str, bytes]:
    """Every strategy's last global model."""
    return {path.name: path.read_bytes() for path in (folder / "out" / "models").iterdir()}


def timeless(result: Result) -> list[StrategyResult]:
    """The strategies' results without what depends on the host's clock and memory."""
    found: list[StrategyResult] = []
    for strategy in result.strategies:
        rounds = [replace(r, seconds=0.0) for r in strategy.rounds]
        found.append(replace(strategy, seconds=0.0, engine=None, rounds=rounds))
    return found


Played = tuple[Path, Result]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("quiet")
    return folder, emulate(folder, QUIET)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("faulty")
    return folder, emulate(folder, FAULTS, hash_seed="1")


def test_memory_and_mosquitto_end_in_the_same_bytes(quiet: Played, tmp_path: Path) -> None:
    folder, virtual = quiet
    real = emulate(tmp_path, QUIET, "--link", "mosquitto")
    assert models(folder) == models(tmp_path)
    assert len(models(folder)) == 3
    for one, two in zip(virtual.strategies, real.strategies, strict=True):
        assert [(d.device, d.before, d.after) for d in one.devices] == [
            (d.device, d.before, d.after) for d in two.devices
        ]
        assert [r.personal for r in one.rounds] == [r.personal for r in two.rounds]
        # What a virtual link is charged is what the kernel counts on a real one, where requests are
        # repeated when the host is slow.
        for charged, counted in (
            (one.bytes.device_up, two.bytes.device_up),
            (one.bytes.device_down, two.bytes.device_down),
        ):
            assert charged - 800 < counted < 1.15 * charged + 800
    assert (virtual.link, real.link) == ("memory", "mosquitto")


def test_devices_choose_whether_to_start_with_their_own(quiet: Played) -> None:
    """From their second round on they have a patch of a tenth of the elements; these are means."""
    size = load(quiet[0] / "out" / "bundle")[0].manifest.layout.size
    rounds = quiet[1].strategies[2].rounds
    counts = [sum(r.personal.values()) for r in rounds]
    assert counts[0] == 0 < sum(counts) and max(counts) <= kept(size, 0.9)


def test_bytes_are_whole_and_apart(quiet: Played) -> None:
    _, result = quiet
    for strategy in result.strategies:
        traffic, devices = strategy.bytes, strategy.devices
        assert traffic.device_up == sum(d.payload_up + d.overhead_up + d.resent_up for d in devices)
        downs = (d.payload_down + d.overhead_down + d.resent_down for d in devices)
        assert traffic.device_down == sum(downs)
        assert traffic.payload_up == sum(d.payload_up for d in devices)
        assert traffic.resent == 0
    fedobp = result.strategies[0]
    updates = sum(r.num_updates for r in fedobp.rounds) * fedobp.bytes.update_payload_mean
    # And the reports of the evaluation.
    assert updates < fedobp.bytes.payload_up < updates + 8 * 1000


def test_a_run_repeats_byte_for_byte_faults_and_all(faulty: Played, tmp_path: Path) -> None:
    folder, first = faulty
    second = emulate(tmp_path, FAULTS, "--link", "memory", hash_seed="2")
    assert models(folder) == models(tmp_path)
    assert timeless(first) == timeless(second)


def test_the_faults_did_happen(faulty: Played) -> None:
    strategy = faulty[1].strategies[0]
    seen = strategy.classes  # those that the final evaluation did not meet are in it
    assert {one.name for one in seen} == {"mains", "solar"}
    assert sum(one.cuts for one in seen) > 5 and sum(one.reboots for one in seen) > 2
    assert strategy.bytes.resent > 0
    assert any(r.late_devices for r in strategy.rounds)
    assert [r.round for r in strategy.rounds] == list(range(1, 13))
    assert all(r.closed_s > r.opened_s for r in strategy.rounds)


@pytest.mark.parametrize(
    "rounds", [5, *(pytest.param(r, marks=pytest.mark.slow) for r in (1, 3, 7, 9, 11))]
)
def test_killed_and_resumed_it_ends_in_the_same_bytes(
    faulty: Played, tmp_path: Path, rounds: int
) -> None:
    process = begin_emulation(tmp_path, FAULTS)
    assert process.stdout is not None
    for line in process.stdout:
        if f"FedAvg round {rounds}/" in line:
            break
    time.sleep(0.02 * rounds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "out" / "result.json").exists()
    # Of a run that has finished in that moment there is the result instead.
    state = tmp_path / "out" / "state"
    assert any(state.rglob("cache/*/*")) or any(state.glob("finished/*"))
    again = emulate(tmp_path, FAULTS, "--resume")
    assert models(faulty[0]) == models(tmp_path)
    assert timeless(faulty[1]) == timeless(again)
    assert again.strategies[0].engine is not None
    assert not (tmp_path / "out" / "state").exists()


def test_a_broker_fleet_resumes_from_its_disks(quiet: Played, tmp_path: Path) -> None:
    process = begin_emulation(tmp_path, QUIET, "--link", "mosquitto", "--only", "FedOBP")
    assert process.stdout is not None
    for line in process.stdout:
        if "FedOBP round 1/" in line:
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in map(int, children):  # the broker is in a session of its own
        os.kill(child, signal.SIGKILL)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    result = emulate(tmp_path, QUIET, "--link", "mosquitto", "--only", "FedOBP", "--resume")
    assert models(tmp_path)["fedobp.bin"] == models(quiet[0])["fedobp.bin"]
    assert [s.name for s in result.strategies] == ["FedOBP"]
