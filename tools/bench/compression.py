"""Measures accuracy against bytes over seeds and splits.

It runs examples/compression.toml once for each seed and alpha. Each run has a folder in FOLDER, with a
report that plots accuracy against bytes; an existing run is not repeated. A cell has accuracies in [0, 1],
before and after local training, as means over all devices and over the worst tenth of them. It also has the
bytes per device and round after the first, absolute and as a share of sending dense models up and down.
compression_figure.py draws them.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tools.bench.fleets import emulated
from tools.bench.harness import Figure, Result, bench

from sedge_cloud.figures.numbers import percent, size
from sedge_emulate import result
from sedge_emulate.headline import headline

FLEET = Path(__file__).parents[2] / "examples" / "compression.toml"
# The fields of a cell: first accuracies, then bytes.
MEANS = (
    "before", "before_worst", "after", "after_worst", "up", "down", "newcomer_down", "of_dense",
)  # fmt: skip
# The setting with which the others are compared.
WHOLE = "everything whole"


def figures(found: Result) -> list[Figure]:
    """Return each setting's accuracy and bytes, as means over the seeds, for each split."""
    grouped: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for cell in found["cells"]:
        grouped.setdefault((cell["alpha"], cell["setting"]), []).append(cell)
    means = {
        key: {mean: fmean(cell[mean] for cell in cells) for mean in MEANS}
        for key, cells in grouped.items()
    }

    def figure(alpha: float, setting: str, cells: list[dict[str, Any]]) -> Figure:
        mean, whole = means[alpha, setting], means.get((alpha, WHOLE))
        accuracies = [f"{percent(mean[key])}" for key in MEANS[:4]]
        seeds = ", ".join(str(cell["seed"]) for cell in cells)
        measured = (
            f"{size(mean['up'] + mean['down'])} per device and round, {times(1 / mean['of_dense'])} "
            f"smaller than dense both ways ({size(mean['up'])} up, {size(mean['down'])} down; newcomer "
            f"{size(mean['newcomer_down'])}); "
            f"{accuracies[0]} before (worst tenth {accuracies[1]}), "
            f"{accuracies[2]} after training (worst tenth {accuracies[3]})"
        )
        if setting != WHOLE and whole:
            before, after = (100 * (mean[key] - whole[key]) for key in ("before", "after"))
            measured += f"; against {WHOLE} {before:+.2f} and {after:+.2f} points"
        what = f"{setting}, Dir({alpha:g}), {found['rounds']} rounds, seed {seeds}"
        return Figure(what, measured)

    return [figure(*key, cells) for key, cells in grouped.items()]


def times(factor: float) -> str:
    """Format a factor: ``1.5 times``, ``186 times``."""
    return f"{factor:.1f} times" if factor < 10 else f"{factor:.0f} times"


@bench("Accuracy against bytes", figures)
def measure(
    seeds: Sequence[int] = (42, 43, 44), alphas: Sequence[float] = (0.1, 0.5), rounds: int = 40,
    out: Path = Path("runs/compression"), fleet: Path = FLEET,
) -> Result:  # fmt: skip
    """Perform the missing runs, and collect the results of all runs."""
    cells: list[dict[str, object]] = []
    for alpha in alphas:
        split = re.sub(r"(?m)^alpha = .*$", f"alpha = {alpha:g}", fleet.read_text())
        for seed in seeds:
            folder = out / f"alpha-{alpha:g}-seed-{seed}-rounds-{rounds}"
            cell = {"alpha": alpha, "seed": seed}
            cells += [
                cell | more for more in cells_of(emulated(split, folder, seed=seed, rounds=rounds))
            ]
    return {"rounds": rounds, "cells": cells}


def cells_of(found: result.Result) -> list[dict[str, object]]:
    """Return the cells of one seed and split, one for each setting."""
    rows = [headline(strategy) for strategy in found.strategies]
    return [
        {
            "setting": row.name,
            "before": row.before.mean,
            "before_worst": row.before.worst_tenth,
            "after": row.after.mean,
            "after_worst": row.after.worst_tenth,
            "up": row.rates.device.up,
            "down": row.rates.device.down,
            "newcomer_down": row.rates.newcomer.down,
            "of_dense": row.of_dense,
        }
        for row in rows
    ]
