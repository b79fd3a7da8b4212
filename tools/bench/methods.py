"""Writes METHODS.md, and the tables of methods in README.md and docs/research.md, from the stored cells.

Missing cells are listed.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import msgspec
from tools.bench.cells import cell_config, kept_cell
from tools.bench.mixes import SHARES, Tried, best_share
from tools.bench.tables import CELLS, FACTORS, SEEDS, SETS, VALIDATION, Choice, folders

from sedge_cloud.figures.numbers import listed, measured, size
from sedge_emulate.compare.comparison import (
    Comparison,
    Row,
    Runs,
    compared,
    comparison,
    runs_in,
)
from sedge_emulate.compare.grids import caption, grids, markdown
from sedge_emulate.compare.moments import MOMENTS, WORDS
from sedge_emulate.config import EmulationConfig, load_emulation
from sedge_emulate.emulation import slug
from sedge_protocol.wire.objective import Metric

# The number of pairs of devices to list: the pairs that learned together most often.
_PAIRS = 3
# The data sets' titles, which are also their column headings.
TITLES = {
    "phones": "phones",
    "shakespeare": "Shakespeare's roles",
    "dir01": "Fashion-MNIST, Dir(0.1)",
    "dir05": "Fashion-MNIST, Dir(0.5)",
}


def page() -> str:
    """Return the text of METHODS.md, which has the tables of every data set."""
    lines = [
        "# Methods on four data sets",
        "",
        "Written by `python -m tools.bench pages` from `tools/bench/results/cells`. "
        "[docs/research.md](../../docs/research.md) says what the tables show.",
    ]
    for name, title in TITLES.items():
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", *methods(name)]
    return "\n".join(lines).rstrip() + "\n"


def methods(name: str) -> list[str]:
    """Return the lines of METHODS.md about one data set."""
    fleet, kept = load_emulation(SETS[name]), CELLS / name
    there = folders(fleet, kept)
    command = f"`python -m tools.bench tables {name}`"
    if not there:
        return [f"There are no results yet; {command} runs the cells."]
    rates = dict(_rates(fleet, kept))
    runs = runs_in(there)
    found = comparison(runs)
    chosen = ", ".join(f"{label} {rate:g}" for label, rate in rates.items())
    about = (
        f"{found.split}, {fleet.rounds.num_rounds} rounds of {fleet.training.local_epochs} epochs; "
        f"{caption(found)} FedAvg after training is FedAvg fine-tuned for "
        f"{fleet.training.local_epochs} epochs. {command}"
    )
    factors = listed([f"{factor:g}" for factor in FACTORS])
    how = (
        f"Learning rates: {chosen}; each is the best of {factors} times the fleet file's, judged on "
        f"{100 * VALIDATION:g} % of the training examples, held out, with half of the rounds and seed "
        f"{fleet.seed}."
    )
    return [
        about,
        "",
        how,
        "",
        *markdown(grids(found)),
        "",
        *_partners(runs),
        "",
        *_missing(fleet, kept),
    ]


def _partners(runs: Runs) -> Iterator[str]:
    """For each method that groups devices, describe which ones learned together under the first seed."""
    for name, by_seed in runs.items():
        seed = min(by_seed)
        partners = by_seed[seed].strategy.partners
        if partners:
            rounds = {
                tuple(sorted((one, other))): count
                for one, others in partners.items()
                for other, count in others.items()
            }
            most = sorted(rounds.items(), key=lambda pair: (-pair[1], pair[0]))[:_PAIRS]
            number = fmean(map(len, partners.values()))
            named = listed([f"{one} with {other} ({count})" for (one, other), count in most])
            yield (
                f"Who learned with whom: under {name}, seed {seed}, a device learned with {number:.1f} "
                f"others in groups; most often, with the number of rounds: {named}."
            )


def overview() -> list[str]:
    """Return a table of all data sets, with the methods that ran under every seed on each of them.

    Its accuracies are pooled over the devices and have no spreads.
    """
    by_set = {
        name: compared(there)
        for name in TITLES
        if (there := folders(load_emulation(SETS[name]), CELLS / name))
    }
    rows = [
        {row.name: row for row in found.strategies if row.seeds == list(SEEDS)}
        for found in by_set.values()
    ]
    heads = ["method", *(_head(name, found) for name, found in by_set.items()), "bytes"]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for name in (name for name in rows[0] if all(name in other for other in rows)):
        cells = [
            _numbers(row[name], found.metric)
            for row, found in zip(rows, by_set.values(), strict=True)
        ]
        both = rows[0][name].figures["bytes_up"].mean + rows[0][name].figures["bytes_down"].mean
        lines.append(f"| {name} | {' | '.join(cells)} | {size(both)} |")
    how = (
        f"Pooled accuracy in per cent, means over {len(SEEDS)} seeds: "
        f"{'/'.join(WORDS[moment] for moment in MOMENTS)}. "
        f"Bytes are for the {next(iter(TITLES.values()))} data, per device and round, up and down combined."
    )
    return [how, "", *lines]


def _head(name: str, found: Comparison) -> str:
    metric = found.metric
    return TITLES[name] + ("" if metric.share else f" ({metric.words}, {metric.better} is better)")


def _numbers(row: Row, metric: Metric) -> str:
    """Format a method's metric before and after training, with "-" for one that is unknown."""
    figures = [row.figures.get(f"{moment}_pooled") for moment in MOMENTS]
    scale, style = (100, ".1f") if metric.share else (1, ".2f")
    return "/".join("-" if each is None else format(scale * each.mean, style) for each in figures)


def mixes(path: Path) -> list[str]:
    """Return a table that shows how Blended's share of the past was chosen."""
    found = msgspec.json.decode(path.read_bytes(), type=dict[str, Tried])
    heads = ["share of the past", *(TITLES[name] for name in found)]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for share in (f"{share:g}" for share in SHARES):
        cells = [
            " / ".join(measured(value, tried.metric) for value in tried.scores[share])
            for tried in found.values()
        ]
        lines.append(f"| {share} | {' | '.join(cells)} |")
    about = (
        "The share of the past in the mean was chosen on held-out training examples, as the learning rates "
        f"were. {best_share(found):g} has the best ranks. Each cell has the metric before / after "
        "training. `python -m tools.bench --keep mixes` measures this."
    )
    return [about, "", *lines]


def _rates(fleet: EmulationConfig, kept: Path) -> Iterator[tuple[str, float]]:
    for strategy in fleet.strategies:
        path = kept / slug(strategy.title) / "rate.json"
        if path.exists():
            choice = msgspec.json.decode(path.read_bytes(), type=Choice)
            yield strategy.title, choice.rate


def _missing(fleet: EmulationConfig, kept: Path) -> Iterator[str]:
    """Yield lines that name the missing cells, grouped by seeds.

    Raises ``DataError`` if a cell was measured with another configuration.
    """
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
