"""Runs every method on a data set with several seeds, for the tables in docs/research.md.

    python -m tools.bench tables phones
    python -m tools.bench tables phones --methods FedAvg alone --seeds 42

The folder ``sets`` has a fleet file for each data set. A method's learning rate is the best of three. The
rates are compared under a separate seed, with half of the rounds, on a held-out fifth of every device's
training examples. A cell in ``results/cells`` is not repeated, and an interrupted one resumes.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace
from rich.console import Console
from tools.bench.cells import cell_config, keep, kept_cell, played, require_config
from tools.bench.harness import RESULTS, BadOption, Figure, Result, bench, chosen

from sedge_cloud.figures.numbers import percent
from sedge_emulate.compare.comparison import compared
from sedge_emulate.config import EmulationConfig, StrategyConfig, load_emulation
from sedge_emulate.emulation import slug
from sedge_emulate.paired import pooled
from sedge_emulate.result import write_whole

SETS = {path.stem: path for path in sorted(Path(__file__).with_name("sets").glob("*.toml"))}
CELLS = RESULTS / "cells"
# The modules of the data sets' models.
EXAMPLES = Path(__file__).parents[2] / "examples"
SEEDS = (42, 43, 44)
# The rates to choose from, as multiples of the fleet file's, and the share of training examples on which
# they are compared.
FACTORS, VALIDATION = (0.3, 1.0, 3.0), 0.2


class Choice(msgspec.Struct, frozen=True):
    """How a method's learning rate was chosen.

    ``scores`` has each rate's pooled metric after local training.
    """

    scores: dict[str, float]
    settings: dict[str, object]
    higher_is_better: bool

    @property
    def rate(self) -> float:
        """The rate with the best metric."""
        best = max if self.higher_is_better else min
        return float(best(self.scores, key=lambda rate: self.scores[rate]))


def figures(found: Result) -> list[Figure]:
    """Return each method's mean accuracy after training."""
    return [
        Figure(f"{name}: {row['name']}, after training", percent(row["figures"]["after"]["mean"]))
        for name, comparison in found.items()
        for row in comparison["strategies"]
    ]


@bench("Many methods on data of real people and on split images", figures)
def measure(
    *names: str, seeds: Sequence[int] = SEEDS, methods: Sequence[str] = (),
    out: Path = Path("runs/tables"), kept: Path = CELLS,
) -> Result:  # fmt: skip
    """Run the missing cells, seed by seed. Returns the comparison of all cells for each data set."""
    console = Console()
    for name in chosen(names, SETS):
        fleet = load_emulation(SETS[name])
        some = [fleet_strategy(fleet, label) for label in methods] or list(fleet.strategies)
        for seed in seeds:
            for strategy in some:
                home = Path(name) / slug(strategy.title)
                rate = chosen_rate(fleet, strategy, home, out, kept, console)
                config = cell_config(fleet, strategy, seed, rate)
                path = home / f"seed-{seed}" / "result.json"
                if kept_cell(config, kept / path) is None:
                    keep(played(config, EXAMPLES, out / path.parent, console), kept / path)
    return {
        name: msgspec.to_builtins(compared(folders(load_emulation(SETS[name]), kept / name)))
        for name in chosen(names, SETS)
    }


def fleet_strategy(fleet: EmulationConfig, label: str) -> StrategyConfig:
    """Return the fleet file's strategy with this label. Raises ``BadOption`` if there is none."""
    named = {strategy.title: strategy for strategy in fleet.strategies}
    if label not in named:
        raise BadOption(f"--methods: found {label!r}, expected one of {', '.join(named)}")
    return named[label]


def folders(fleet: EmulationConfig, kept: Path) -> list[Path]:
    """Return the folders of the methods that have at least one cell, in the fleet file's order."""
    found = [kept / slug(strategy.title) for strategy in fleet.strategies]
    return [folder for folder in found if any(folder.glob("seed-*/result.json"))]


def tuning_fleet(fleet: EmulationConfig) -> EmulationConfig:
    """Return the fleet for choosing rates: half of the rounds, tested on held-out training examples."""
    rounds = replace(fleet.rounds, num_rounds=max(1, fleet.rounds.num_rounds // 2))
    data = replace(fleet.data, validation=VALIDATION)
    return replace(fleet, rounds=rounds, data=data, classes=())


def chosen_rate(
    fleet: EmulationConfig, strategy: StrategyConfig, home: Path, out: Path, kept: Path, console: Console,
) -> float:  # fmt: skip
    """Return a method's learning rate: the stored choice, or a new one, which is then stored."""
    rate = (strategy.training or fleet.training).learning_rate
    tuning, path = tuning_fleet(fleet), kept / home / "rate.json"
    config = cell_config(tuning, strategy, fleet.seed, rate)
    if path.exists():
        choice = msgspec.json.decode(path.read_bytes(), type=Choice)
        require_config(config, choice.settings, path)
        return choice.rate
    scores: dict[str, float] = {}
    higher = True
    for each in (float(f"{rate * factor:.2g}") for factor in FACTORS):
        cell, folder = (
            cell_config(tuning, strategy, fleet.seed, each),
            out / home / f"rate-{each:g}",
        )
        result = kept_cell(cell, folder / "result.json") or played(cell, EXAMPLES, folder, console)
        score = pooled(result.strategies[0].devices, "after")
        assert score is not None  # an emulation always has one
        scores[f"{each:g}"], higher = round(score, 6), result.metric.better == "higher"
    choice = Choice(scores, msgspec.to_builtins(config), higher)
    write_whole(msgspec.json.encode(choice) + b"\n", path)
    return choice.rate
