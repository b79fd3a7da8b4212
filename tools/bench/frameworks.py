"""Runs the same federated training in sedge-emulate, Flower's simulation and FedJAX, on one machine.

Ten devices have 256 images of Fashion-MNIST each, and all take part in every round with 8 steps of SGD in
batches of 32 (learning rate .01). The model is the 4-layer CNN (582,026 parameters), the strategy FedAvg
with full float32 weights. Each framework uses all cores in its own way: sedge-emulate (memory link) and
Flower (Ray) have one single-threaded process per core, FedJAX runs one client after the other with XLA's
threads. sedge-emulate also evaluates every model before and after training, on 4 images.

Flower and FedJAX are installed by pip into their own virtual environments, which are kept in --venvs; if
that fails, the row says so. All frameworks are measured in turn, --passes times. "round" is the median over
all passes and rounds, except for each pass's first round ("first"), which includes starting processes and
compiling. "dispatch" is the cost per device of a round without any training. Flower and FedJAX run such
rounds. For sedge-emulate, which has none, it is the wall time that is not the workers' training and
evaluation, per device and round, including joining and the final round.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from tools.bench.emulator import TARGET_DISPATCH_MS
from tools.bench.harness import BadOption, Figure, Result, Target, at_most, bench, chosen
from tools.bench.parts.environments import TORCH, Unavailable, install, output

from sedge_emulate.data.datasets import load
from sedge_emulate.data.split import pathological
from sedge_emulate.result import StrategyResult, read_json

SCRIPTS = Path(__file__).parent / "elsewhere"
DEVICES, STEPS, BATCH_SIZE, CLASSES = 10, 8, 32, 10
# A device's training examples, plus 4 test examples, because sedge-emulate also evaluates.
TRAIN, TEST = STEPS * BATCH_SIZE, 4
RUN_S = 300
FLEET = f"""\
devices = {DEVICES}
link = "memory"
[data]
dataset = "data.npz"
split = "pathological"
classes_per_device = {CLASSES}
test_fraction = {(TEST + 0.5) / (TRAIN + TEST)}
[model]
batch_size = {BATCH_SIZE}
[rounds]
num_rounds = ROUNDS
[training]
local_epochs = 1
learning_rate = 0.01
[broadcast]
values = "fp32"
fraction = 1
[[strategies]]
name = "fedavg"
"""
Row = dict[str, object]


@dataclass(frozen=True)
class Pass:
    """One run of a framework: the seconds of its rounds, and the milliseconds of dispatch per device."""

    rounds: list[float]
    dispatch_ms: float


@dataclass(frozen=True)
class Framework:
    """Another framework. ``script`` does the work in an environment with ``packages``, installed by pip.

    ``report`` lists the distributions whose versions are reported with the figures.
    """

    script: str
    packages: tuple[tuple[str, ...], ...]
    report: tuple[str, ...]
    options: tuple[str, ...] = ()


def frameworks() -> dict[str, Framework]:
    """Return the other frameworks. They use exactly our version of torch."""
    cpus = ("--cpus", str(os.cpu_count() or 1))
    return {
        "flower": Framework(
            "with_flower.py", (("flwr[simulation]",), (TORCH,)), ("flwr", "ray", "torch"), cpus
        ),
        "fedjax": Framework(
            "with_fedjax.py", (("fedjax", "jax", "jaxlib"),), ("fedjax", "jax", "jaxlib")
        ),
    }


def versions(python: Path, framework: Framework) -> dict[str, str]:
    """Return the versions of a framework's distributions."""
    code = "import json, sys; from importlib.metadata import version; "
    code += "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    words = [str(python), "-c", code, *framework.report]
    found: dict[str, str] = json.loads(
        subprocess.run(words, check=True, capture_output=True).stdout
    )
    return found


def write_data(folder: Path) -> None:
    """Write the examples, balanced by class: in one array for sedge-emulate, by device for the others."""
    images = load("fashion-mnist")
    each = DEVICES * (TRAIN + TEST) // CLASSES
    chosen = np.concatenate([np.flatnonzero(images.labels == c)[:each] for c in range(CLASSES)])
    x, y = images.inputs[chosen].astype(np.float32), images.labels[chosen]
    np.savez(folder / "data.npz", x=x, y=y)
    parts = pathological(y, DEVICES, CLASSES, np.random.default_rng(0))
    rows = np.stack([part[np.linspace(0, len(part) - 1, TRAIN, dtype=int)] for part in parts])
    np.savez(folder / "devices.npz", x=x[rows], y=y[rows])


def emulated(fleet: str, folder: Path, log: Path, timeout_s: float) -> StrategyResult:
    """Run the first strategy of a fleet file's text in a folder. Raises ``Unavailable`` if it fails."""
    path, out = folder / "fleet.toml", folder / "out"
    path.write_text(fleet)
    words = [sys.executable, "-m", "sedge_emulate", "run", str(path), "--fresh", "--out", str(out)]
    output("sedge-emulate", words, log, timeout_s)
    return read_json(out / "result.json").strategies[0]


def by_sedge(log: Path, folder: Path, rounds: int) -> Pass:
    """Run one emulation."""
    found = emulated(FLEET.replace("ROUNDS", str(rounds)), folder, log, RUN_S)
    sizes = {(device.num_train, device.num_test) for device in found.devices}
    engine = found.engine
    if sizes != {(TRAIN, TEST)} or engine is None:
        raise Unavailable(f"devices have {sizes} examples, expected {TRAIN} and {TEST}")
    beside_s = engine.wall_s - engine.train_s / engine.workers
    seconds = [one.seconds for one in found.rounds]
    return Pass(seconds, 1000 * beside_s / engine.device_rounds)


def by_other(python: Path, framework: Framework, log: Path, folder: Path, rounds: int) -> Pass:
    """Run another framework once."""
    words = [str(python), str(SCRIPTS / framework.script), str(folder / "devices.npz")]
    words += ["--rounds", str(rounds), "--steps", str(STEPS), *framework.options]
    lines = output(framework.script, words, log, RUN_S).splitlines()
    # Ray's processes may still print after the program's last line.
    (line,) = [line for line in lines if line.startswith('{"rounds"')]
    found = json.loads(line)
    return Pass(found["rounds"], 1000 * median(found["empty"][1:]) / DEVICES)


def row(passes: list[Pass]) -> Row:
    """Return the row of one framework."""
    round_s = median(seconds for one in passes for seconds in one.rounds[1:])
    return {
        "round_s": round(round_s, 3),
        "first_s": round(median(one.rounds[0] for one in passes), 2),
        "examples_s": round(DEVICES * TRAIN / round_s),
        "dispatch_ms": round(median(one.dispatch_ms for one in passes), 2),
    }


def rows_of(names: Sequence[str], venvs: Path, rounds: int, passes: int) -> dict[str, Row]:
    """Return a row for each framework, or the reason why it is missing."""
    others = frameworks()
    found: dict[str, list[Pass]] = {name: [] for name in names}
    failed: dict[str, Row] = {}
    pythons: dict[str, Path] = {}
    venvs.mkdir(parents=True, exist_ok=True)

    def attempt(name: str, work: Callable[[], object]) -> None:
        if name not in failed:
            try:
                work()
            except Unavailable as why:
                failed[name] = {"why": str(why)}

    def prepare(name: str) -> None:
        if name in others:
            pythons[name] = install(others[name].packages, venvs / name)

    def run(name: str, folder: Path) -> None:
        log = venvs / f"{name}.log"
        found[name].append(
            by_other(pythons[name], others[name], log, folder, rounds)
            if name in others
            else by_sedge(log, folder, rounds)
        )

    for name in names:
        attempt(name, partial(prepare, name))
    with tempfile.TemporaryDirectory(prefix="sedge-bench-") as temporary:
        folder = Path(temporary)
        write_data(folder)
        for name in [*names] * passes:
            attempt(name, partial(run, name, folder))
    rows = {name: failed.get(name) or row(found[name]) for name in names}
    for name in pythons.keys() - failed.keys():
        rows[name]["versions"] = versions(pythons[name], others[name])
    return rows


def figures(found: Result) -> list[Figure]:
    """Return a figure for each framework. All of them do the same work."""
    rows = found["frameworks"]
    own_s = rows.get("sedge", {}).get("round_s")
    written: list[Figure] = []
    for name, row in rows.items():
        versions = ", ".join(f"{key} {value}" for key, value in row.get("versions", {}).items())
        title = f"{name} ({versions})" if versions else name
        what = f"ten devices of 256 images, one round of FedAvg by {title}"
        if "why" in row:
            written.append(Figure(what, row["why"]))
            continue
        measured = (
            f"{row['round_s']:.2f} s, {row['examples_s']:,.0f} examples/s, "
            f"{row['dispatch_ms']:.1f} ms per device besides training"
        )
        met: tuple[Target, ...] = ()
        if name == "sedge":
            met = (at_most(TARGET_DISPATCH_MS, row["dispatch_ms"], "ms"),)
        elif own_s:
            measured += f"; sedge-emulate is {row['round_s'] / own_s:.1f} times as fast"
        written.append(Figure(what, measured, met))
    return written


@bench("Other frameworks", figures)
def measure(
    *names: str, rounds: int = 6, passes: int = 2, venvs: Path = Path("runs/frameworks")
) -> Result:
    """Measure ``rounds`` rounds per pass. The first round of a pass does not count."""
    if rounds < 2 or passes < 1:
        raise BadOption(f"found {rounds} rounds and {passes} passes, expected at least 2 and 1")
    rows = rows_of(chosen(names, ("sedge", *frameworks())), venvs, rounds, passes)
    work = {"devices": DEVICES, "steps": STEPS, "batch_size": BATCH_SIZE, "cpus": os.cpu_count()}
    return {"frameworks": rows, "work": work}
