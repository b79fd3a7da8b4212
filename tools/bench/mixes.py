"""Chooses how much of its past model a device keeps under ``blended``, on held-out training examples.

    python -m tools.bench --keep mixes

Three shares are compared in the same way as learning rates (tables.py): with one seed, half of the rounds,
and a fifth of every device's training examples held out. One share is chosen for all data sets: the one
with the best ranks, summed over the data sets before and after training. On each data set, Blended uses the
learning rate chosen for it there.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace
from rich.console import Console
from tools.bench.cells import cell_config, kept_cell, played
from tools.bench.harness import Figure, Result, bench, chosen
from tools.bench.tables import (
    CELLS,
    EXAMPLES,
    SETS,
    chosen_rate,
    fleet_strategy,
    tuning_fleet,
)

from sedge_cloud.figures.numbers import measured as shown
from sedge_emulate.config import load_emulation
from sedge_emulate.emulation import slug
from sedge_emulate.paired import pooled
from sedge_protocol.wire.objective import Metric

SHARES = (0.25, 0.5, 0.75)
LABEL = "Blended"


class Tried(msgspec.Struct, frozen=True):
    """A data set's metric for each share, pooled over the devices, before and after training."""

    metric: Metric
    rate: float
    scores: dict[str, tuple[float, float]]


def figures(found: Result) -> list[Figure]:
    """Return the metric for each data set and share."""
    return [
        Figure(
            f"{name}, {share} of the past",
            " / ".join(shown(value, tried.metric) for value in values),
        )
        for name, tried in msgspec.convert(found, dict[str, Tried]).items()
        for share, values in tried.scores.items()
    ]


def best_share(found: Mapping[str, Tried]) -> float:
    """Return the share with the lowest sum of ranks over the data sets, before and after training."""

    def rank(share: str) -> int:
        return sum(
            sum(
                tried.metric.badness(other[when]) < tried.metric.badness(tried.scores[share][when])
                for other in tried.scores.values()
            )
            for tried in found.values()
            for when in (0, 1)
        )

    return float(min((f"{share:g}" for share in SHARES), key=rank))


@bench("How much of its past a device keeps", figures)
def measure(*names: str, out: Path = Path("runs/tables"), kept: Path = CELLS) -> Result:
    """Try every share of the past on each data set."""
    console, found = Console(), dict[str, Tried]()
    for name in chosen(names, SETS):
        fleet = load_emulation(SETS[name])
        strategy, home = fleet_strategy(fleet, LABEL), Path(name) / slug(LABEL)
        rate = chosen_rate(fleet, strategy, home, out, kept, console)
        scores: dict[str, tuple[float, float]] = {}
        for share in SHARES:
            mixed = replace(strategy, options={**strategy.options, "mix": share})
            cell = cell_config(tuning_fleet(fleet), mixed, fleet.seed, rate)
            folder = out / home / f"mix-{share:g}"
            result = kept_cell(cell, folder / "result.json") or played(
                cell, EXAMPLES, folder, console
            )
            devices = result.strategies[0].devices
            before, after = pooled(devices, "before"), pooled(devices, "after")
            assert before is not None and after is not None
            scores[f"{share:g}"] = (round(before, 6), round(after, 6))
            found[name] = Tried(result.metric, rate, scores)
    made: Result = msgspec.to_builtins(found)
    return made
