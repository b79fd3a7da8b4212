"""Measures the emulator's overhead: time and memory beyond training, for many sizes of fleet and cohort.

Every run is ``sedge-emulate`` on real Fashion-MNIST with the 4-layer CNN, FedOBP, five local epochs and
updates of the largest 1 % in bfloat16, in virtual time. The last two runs are the unchanged
examples/thousand.toml for 20 rounds, with the local pool and with Ray. "overhead" is the share of the
workers' time that is not training or evaluation. "cost" is that time per device round: (wall x workers -
training) / device rounds; frameworks.py measures the same for other frameworks. Memory is the peak over all
processes together.

A virtual machine gets its memory from the host page by page, on first use. If that is slow (we have seen 5
s per GiB, and .9 s the second time), the first run would lose more time to it than to the emulator. So most
of the free memory is touched once beforehand. Linux only.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.bench.harness import Figure, Result, at_most, bench

from sedge_cloud.figures.numbers import size
from sedge_emulate.config import load_emulation
from sedge_emulate.result import Engine, read_json

FLEET = """\
devices = {devices}
[data]
dataset = "fashion-mnist"
split = "dirichlet"
alpha = 0.5
min_examples = 2
[rounds]
num_rounds = {rounds}
fraction_train = {fraction}
fraction_evaluate = {fraction}
[training]
local_epochs = 5
learning_rate = 0.01
momentum = 0.7
[codec]
values = "bf16"
fraction = 0.01
[broadcast]
values = "fp32"
fraction = 1
[[strategies]]
name = "fedobp"
options = {{ quantile = 0.9995 }}
"""

EXAMPLE = Path(__file__).parents[2] / "examples" / "thousand.toml"

Row = dict[str, int | float | str]
# The targets for time beyond training: milliseconds per device round, and the share of the example's time.
TARGET_DISPATCH_MS, TARGET_OVERHEAD = 5.0, 0.05
# The share of the free memory to touch before the first run.
WARMED = 0.8


def warm_memory() -> None:
    """Touch most of the free memory once, in a separate process, whose exit frees it."""
    (line,) = re.findall(r"^MemFree: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    code = "import sys; b'1' * int(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(int(WARMED * 1024 * int(line)))], check=True)


def emulate(fleet: Path, *words: str) -> Engine:
    """Run one emulation in its own folder. ``words`` are more command-line arguments."""
    with tempfile.TemporaryDirectory(prefix="sedge-bench-") as name:
        out = Path(name) / "out"
        command = [sys.executable, "-m", "sedge_emulate", "run", str(fleet), "--out", str(out)]
        subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL)
        engine = read_json(out / "result.json").strategies[0].engine
    assert engine is not None
    return engine


def measured(devices: int, cohort: int, rounds: int) -> Row:
    """Measure one row of the table."""
    with tempfile.TemporaryDirectory(prefix="sedge-bench-") as name:
        fleet = Path(name) / "fleet.toml"
        fleet.write_text(FLEET.format(devices=devices, rounds=rounds, fraction=cohort / devices))
        return row(devices, cohort, emulate(fleet))


def row(devices: int, cohort: int, engine: Engine) -> Row:
    """Return the row with the cost of an emulation."""
    beside_s = engine.wall_s * engine.workers - engine.train_s
    return {
        "devices": devices,
        "cohort": cohort,
        "device_rounds": engine.device_rounds,
        "wall_s": round(engine.wall_s, 1),
        "device_rounds_per_s": round(engine.device_rounds / engine.wall_s, 1),
        "overhead": round(engine.overhead, 3),
        "cost_ms": round(1000 * beside_s / engine.device_rounds, 2),
        "peak_rss_bytes": engine.peak_rss_bytes,
        "trainer": engine.trainer,
    }


def figures(found: Result) -> list[Figure]:
    """Return figures for the cost of an emulation beyond training."""
    written = [
        Figure(
            f"emulated devices, {row['devices']:,} of which {row['cohort']:,} in a round",
            f"{row['cost_ms']:.1f} ms of a core per device round outside training, "
            f"{row['device_rounds_per_s']:g} device rounds per second, "
            f"{size(row['peak_rss_bytes'])} of memory",
            (at_most(TARGET_DISPATCH_MS, row["cost_ms"], "ms"),),
        )
        for row in found["emulator"]
    ]
    example = found["example"]
    what = f"examples/thousand.toml, {example['device_rounds']:,} device rounds"
    measured = (
        f"{example['wall_s']:.0f} s, {example['device_rounds_per_s']:g} device rounds per second, "
        f"{example['overhead']:.1%} of the time outside training, "
        f"{size(example['peak_rss_bytes'])} of memory"
    )
    target = f"at most {TARGET_OVERHEAD:.0%} outside training"
    return [*written, Figure(what, measured, ((target, example["overhead"] <= TARGET_OVERHEAD),))]


@bench("The emulator's overhead", figures)
def measure(
    rounds: int = 5,
    devices: Sequence[int] = (100, 1000, 10_000),
    cohorts: Sequence[int] = (10, 100),
) -> Result:
    """Run every cohort of every fleet, and the example twice."""
    warm_memory()
    rows = [
        measured(number, cohort, rounds)
        for number in devices
        for cohort in cohorts
        if cohort <= number
    ]
    warm_memory()
    config = load_emulation(EXAMPLE)
    cohort = round(config.rounds.fraction_train * config.devices)
    example = row(config.devices, cohort, emulate(EXAMPLE))
    ray = row(config.devices, cohort, emulate(EXAMPLE, "--ray", "local"))
    return {"emulator": rows, "example": example, "ray": ray}
