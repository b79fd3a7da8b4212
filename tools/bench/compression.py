"""Accuracy beside bytes, over seeds and splits.

    python -m tools.bench.compression [--seeds 42 43 44] [--alphas 0.1 0.5] [--rounds 40] [--out FOLDER]

Runs examples/compression.toml once for each seed and alpha. Each has a folder of FOLDER, with a report that
plots accuracy against bytes; one that is there already is not run again. The last line is JSON: the cells'
accuracies in [0, 1], before and after local training, means over the devices and over the worst tenth of
them, the bytes of a device and round after its first, and which share of dense both ways they are.
compression_figure.py draws them.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from sedge_emulate.__main__ import main as emulate
from sedge_emulate.headline import headline
from sedge_emulate.result import read_json

FLEET = Path(__file__).parents[2] / "examples" / "compression.toml"


def measure(
    seeds: list[int], alphas: list[float], rounds: int, out: Path, fleet: Path = FLEET
) -> dict[str, object]:
    """Run what is not there yet, and collect everything."""
    cells: list[dict[str, object]] = []
    for alpha in alphas:
        for seed in seeds:
            folder = out / f"alpha-{alpha:g}-seed-{seed}-rounds-{rounds}"
            if not (folder / "result.json").exists():
                folder.mkdir(parents=True, exist_ok=True)
                split = re.sub(r"(?m)^alpha = .*$", f"alpha = {alpha:g}", fleet.read_text())
                (folder / "fleet.toml").write_text(split)
                words = [
                    "--seed",
                    str(seed),
                    "--rounds",
                    str(rounds),
                    "--out",
                    str(folder),
                    "--fresh",
                ]
                if status := emulate(["run", str(folder / "fleet.toml"), *words]):
                    sys.exit(status)
            cells += [
                {"alpha": alpha, "seed": seed, **cell} for cell in cells_of(folder / "result.json")
            ]
    return {"rounds": rounds, "cells": cells}


def cells_of(path: Path) -> list[dict[str, object]]:
    """The cells of one seed and split, one for each setting."""
    rows = [headline(strategy) for strategy in read_json(path).strategies]
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


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.1, 0.5])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("runs/compression"))
    given = parser.parse_args()
    print(json.dumps(measure(given.seeds, given.alphas, given.rounds, given.out)))


if __name__ == "__main__":
    main()
