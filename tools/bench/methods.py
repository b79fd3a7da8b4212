"""The tables of many methods in docs/research.md, from the cells that are kept; the others are named."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from tools.bench.cells import cell_config, kept_cell
from tools.bench.tables import CELLS, FACTORS, SEEDS, SETS, VALIDATION, Choice, folders

from sedge_cloud.figures.numbers import listed
from sedge_emulate.compare.comparison import comparison, runs_in
from sedge_emulate.compare.grids import caption, grids, markdown
from sedge_emulate.config import EmulationConfig, load_emulation
from sedge_emulate.emulation import slug


def methods(name: str) -> list[str]:
    """The lines on one data set."""
    fleet, kept = load_emulation(SETS[name]), CELLS / name
    there = folders(fleet, kept)
    command = f"`python -m tools.bench tables {name}`"
    if not there:
        return [f"No cell is there yet; {command} runs them."]
    rates = dict(_rates(fleet, kept))
    runs = runs_in(there)
    found = comparison(runs)
    chosen = ", ".join(f"{label} {rate:g}" for label, rate in rates.items())
    about = (
        f"{found.split}, {fleet.rounds.num_rounds} rounds of {fleet.training.local_epochs} epochs; "
        f"{caption(found)} {command}"
    )
    factors = listed([f"{factor:g}" for factor in FACTORS])
    how = (
        f"Learning rates: {chosen}; each is the best of {factors} times the fleet file's, judged on "
        f"{100 * VALIDATION:g} % of the training examples, held out, with half of the rounds and seed "
        f"{SEEDS[0]}. Nothing else was chosen."
    )
    return [about, "", how, "", *markdown(grids(found)), "", *_missing(fleet, kept)]


def _rates(fleet: EmulationConfig, kept: Path) -> Iterator[tuple[str, float]]:
    for strategy in fleet.strategies:
        path = kept / slug(strategy.title) / "rate.json"
        if path.exists():
            choice = msgspec.json.decode(path.read_bytes(), type=Choice)
            yield strategy.title, choice.rate


def _missing(fleet: EmulationConfig, kept: Path) -> Iterator[str]:
    """Which cells there are not. Raises ``DataError`` for one of another configuration."""
    rates = dict(_rates(fleet, kept))
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for strategy in fleet.strategies:
        absent: tuple[int, ...] = ()
        for seed in SEEDS:
            rate = rates.get(strategy.title, fleet.training.learning_rate)
            path = kept / slug(strategy.title) / f"seed-{seed}" / "result.json"
            if kept_cell(cell_config(fleet, strategy, seed, rate), path) is None:
                absent += (seed,)
        if absent:
            by_seeds.setdefault(absent, []).append(strategy.title)
    for seeds, names in by_seeds.items():
        which = f"seed{'s' * (len(seeds) > 1)} {listed([str(seed) for seed in seeds])}"
        yield f"Not run yet under {which}: {listed(names)}."
