"""Measures how much damage two hostile devices among ten do with each attack, under the default [robust].

It runs the fleet of examples/attacks.toml, with digits split by Dir(0.5), under every attack of the
emulator (sedge_emulate/attack.py). The attackers know [robust] and every device's examples (in attacks
called "knowing their own", only their own examples), and claim to have 2^40 examples. For each seed, a cell
has the honest devices' mean error before local training, the share of the attackers that was named, as a
mean over the rounds, and, for the backdoor, the share of marked images to which the global model gives the
attackers' label. Cells whose error is more than twice the error without attackers, and the backdoor, are
also run under the other aggregation rules. Results in ``--out`` are not repeated. It takes twenty minutes
on two idle cores. The defaults of [robust] were tuned on seeds 42 to 44; the first choice, clip =
max_weight = 1.5, was replaced after its results on seeds 45 to 47 were known as well.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
from tools.bench.fleets import emulated
from tools.bench.harness import Figure, Result, at_most, bench, chosen

from sedge_cloud.figures.numbers import percent
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import TrainingDiverged
from sedge_emulate.attack import TARGET_LABEL, marked
from sedge_emulate.config import load_emulation
from sedge_emulate.data.datasets import load as load_dataset
from sedge_emulate.emulation import slug
from sedge_emulate.model import ModelSource
from sedge_emulate.result import StrategyResult
from sedge_emulate.workers.setup import WorkerSetup, trainer_for
from sedge_protocol.wire.bundle import load as load_bundle

FLEET = Path(__file__).parents[2] / "examples" / "attacks.toml"
HOSTILE = ("device-0", "device-1")
CLEAN, BACKDOOR = "nobody hostile", "backdoor"
# Each attack, as the [attack] table of the fleet file.
KNOWING = 'knows = "all"'
ATTACKS: Mapping[str, str] = {
    CLEAN: "",
    "sign flip": "scale = -1",
    "label flip": f'name = "labels", {KNOWING}',
    "colluding": f'name = "colluding", {KNOWING}',
    "little is enough, z = 1": f'name = "little", scale = 1.0, {KNOWING}',
    "little is enough, z = 1.5": f'name = "little", scale = 1.5, {KNOWING}',
    "inner product, eps = .5": f'name = "inner", scale = 0.5, {KNOWING}',
    "inner product, eps = 2.9": f'name = "inner", scale = 2.9, {KNOWING}',
    "hidden": f'name = "hidden", {KNOWING}',
    "hidden, knowing their own": 'name = "hidden"',
    "drift": f'name = "drift", {KNOWING}',
    BACKDOOR: f'name = "backdoor", {KNOWING}',
}
CLAIM = "devices = 2, claim = 1_099_511_627_776"
# These options are set in addition to a strategy's defaults.
OPTIONS: Mapping[str, str] = {
    "fedpurin": 'codec = { values = "int8" }',
    "fedobp": 'options = { quantile = "paper" }',
}
# The rules to try if the default fails. FedPURIN's own average does not support coordinate-wise rules.
OTHERS: Mapping[str, tuple[str, ...]] = {
    "fedavg": ("multi_krum", "trimmed_mean", "median"),
    "fedpurin": ("multi_krum", "mean"),
    "fedobp": ("multi_krum", "trimmed_mean", "median"),
}
# An attack is withstood if the error is at most this many times the error without attackers.
HELD = 2.0


class Cell(msgspec.Struct, omit_defaults=True):
    """The results of one attack on one strategy: one value per seed, each a share in [0, 1]."""

    strategy: str
    attack: str
    rule: str = ""
    error: list[float] = []
    named: list[float] = []
    success: list[float] = []


def figures(found: Result) -> list[Figure]:
    """Return one figure per cell: the damage that two hostile devices among ten do."""
    cells = msgspec.convert(found["cells"], list[Cell])
    clean = {cell.strategy: fmean(cell.error) for cell in cells if cell.attack == CLEAN}
    return [figure(cell, clean[cell.strategy]) for cell in cells]


def figure(cell: Cell, clean: float) -> Figure:
    """Return the figure of a cell.

    Attacks other than the backdoor have a target under the default rule: an upper bound on the error.
    """
    error = fmean(cell.error)
    what = f"error of the honest devices, {cell.strategy}: {cell.attack}"
    if cell.attack == CLEAN:
        return Figure(what, percent(error))
    measured = f"{percent(error)}; named in {percent(fmean(cell.named))} of rounds"
    if cell.success:
        share = percent(fmean(cell.success))
        measured += f"; {share} of marked images are classified as the attackers' label"
    if cell.rule:
        return Figure(f'{what}, rule = "{cell.rule}"', measured)
    held = (at_most(HELD, error / clean, "times"),)
    return Figure(what, measured, () if cell.success else held)


@bench("Damage done by hostile devices", figures)
def measure(
    strategies: Sequence[str] = (), seeds: Sequence[int] = (45, 46, 47), rounds: int = 20,
    out: Path = Path("runs/attacks"),
) -> Result:  # fmt: skip
    """Run every attack under the default rule.

    The backdoor, and attacks that the default rule does not withstand, are also run under the other rules.
    """
    names = chosen(strategies, OTHERS)
    cells = [Cell(strategy, attack) for strategy in names for attack in ATTACKS]
    run(cells, seeds, rounds, out / "default")
    clean = {cell.strategy: fmean(cell.error) for cell in cells if cell.attack == CLEAN}
    others = [
        Cell(cell.strategy, cell.attack, rule)
        for cell in cells
        if cell.attack == BACKDOOR or fmean(cell.error) > HELD * clean[cell.strategy]
        for rule in OTHERS[cell.strategy]
    ]
    run(others, seeds, rounds, out / "others")
    return {"seeds": seeds, "rounds": rounds, "cells": msgspec.to_builtins([*cells, *others])}


def run(cells: Sequence[Cell], seeds: Sequence[int], rounds: int, out: Path) -> None:
    """Run the cells without results, one fleet per strategy and seed, and fill in their results."""
    head = FLEET.read_text().partition("[[strategies]]")[0]
    for strategy in dict.fromkeys(cell.strategy for cell in cells):
        same = [cell for cell in cells if cell.strategy == strategy]
        for seed in seeds:
            folder = out / f"{strategy}-{seed}"
            text = head + "".join(map(table, same))
            results = emulated(text, folder, seed=seed, rounds=rounds).strategies
            for cell, result in zip(same, results, strict=True):
                add(cell, result)
                if cell.attack == BACKDOOR:
                    cell.success.append(backdoor_success(folder, result.name))


def table(cell: Cell) -> str:
    """Return the cell as one of the fleet file's [[strategies]]."""
    hostile = cell.attack != CLEAN
    lines = [
        "[[strategies]]",
        f'name = "{cell.strategy}"',
        f'label = "{cell.strategy}: {cell.attack} {cell.rule}"',
        f"attack = {{ {CLAIM}, {ATTACKS[cell.attack]} }}" if hostile else "",
        f'robust = {{ rule = "{cell.rule}" }}' if cell.rule else "",
        OPTIONS.get(cell.strategy, ""),
    ]
    return "\n".join(lines) + "\n"


def add(cell: Cell, result: StrategyResult) -> None:
    """Append the honest devices' mean error, and the mean share of the hostile devices named per round."""
    honest = [device for device in result.devices if device.device not in HOSTILE]
    cell.error.append(1 - fmean(device.before for device in honest))
    named = [len(set(HOSTILE) & row.distrusted.keys()) / len(HOSTILE) for row in result.rounds]
    cell.named.append(fmean(named))


def backdoor_success(out: Path, title: str) -> float:
    """Return the share of marked images of other classes to which the last model gives the target label."""
    config = load_emulation(out / "fleet.toml")
    data = load_dataset(config.data.dataset)
    source = ModelSource.of(config.model, data, out)
    bundle, _ = load_bundle(out / "bundle")
    setup = WorkerSetup(out, out / "bundle", source, config.trainer)
    trainer = trainer_for(setup, bundle, data.inputs[:32], print)
    theta = np.fromfile(out / "models" / f"{slug(title)}.bin", "<f4")
    others = data.targets != TARGET_LABEL
    images = Examples(marked(data.inputs[others]), np.full_like(data.targets[others], TARGET_LABEL))
    (judged,) = trainer.evaluate([(theta, images)])
    return 0.0 if isinstance(judged, TrainingDiverged) else judged.metric
