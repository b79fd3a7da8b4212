"""``sedge-emulate compare``: the same fleet under several seeds, as mean and spread by strategy.

    a run's figure    of its final evaluation over all devices, and of a device and round after its first
    spread            the sample standard deviation over the runs (n - 1); none of a single run
    difference        the first strategy's figure minus another's, run by run: seeds move both alike

Runs are compared only where nothing but the seed differs. Strategies are matched by their label, so runs of
one strategy each can be compared with each other.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sedge_cloud.figures.numbers import listed, size
from sedge_emulate.headline import rates_of
from sedge_emulate.paired import pooled
from sedge_emulate.result import Result, StrategyResult, read_json
from sedge_emulate.settings import conditions, conditions_of
from sedge_protocol.errors import DataError
from sedge_protocol.host.console import json_text
from sedge_protocol.wire.objective import Metric

# A run's figures by name.
_Figures: TypeAlias = dict[str, float]
_FIGURES: Mapping[str, Callable[[StrategyResult], float | None]] = {
    "before_pooled": lambda s: pooled(s.devices, "before"),
    "before": lambda s: s.before.mean,
    "before_worst_tenth": lambda s: s.before.worst_tenth,
    "after_pooled": lambda s: pooled(s.devices, "after"),
    "after": lambda s: s.after.mean,
    "after_worst_tenth": lambda s: s.after.worst_tenth,
    "central_before": lambda s: s.central.before.mean if s.central else None,
    "central_after": lambda s: s.central.after.mean if s.central else None,
    "global_model": lambda s: s.central.global_model if s.central else None,
    "bytes_up": lambda s: rates_of(s.rounds).device.up or None,
    "bytes_down": lambda s: rates_of(s.rounds).device.down or None,
}
# The tables, and the columns of each.
_TABLES: Sequence[Mapping[str, str]] = (
    {
        "before_pooled": "before, pooled",
        "before": "mean",
        "before_worst_tenth": "worst 10 %",
    },
    {
        "after_pooled": "after, pooled",
        "after": "mean",
        "after_worst_tenth": "worst 10 %",
    },
    {
        "bytes_up": "up",
        "bytes_down": "down",
    },
    {
        "central_before": "for all, before",
        "central_after": "for all, after",
        "global_model": "global model",
    },
)
# The table of differences.
_DIFFERENCES: Mapping[str, str] = {
    "before_pooled": "before, pooled",
    "before": "mean",
    "after_pooled": "after, pooled",
    "after": "mean",
}
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


class Figure(msgspec.Struct, frozen=True):
    """A mean over runs, and their sample standard deviation; None of a single run."""

    mean: float
    std: float | None


class Row(msgspec.Struct, frozen=True):
    """One strategy; a figure that not every run has is left out."""

    name: str
    seeds: list[int]
    figures: dict[str, Figure]


class Comparison(msgspec.Struct, frozen=True):
    """All strategies of runs that differ in their seeds alone.

    ``differences`` are the first strategy's figures minus those of each other one, over common seeds.
    """

    dataset: str
    split: str
    devices: int
    metric: Metric
    strategies: list[Row]
    differences: list[Row] = []


def compare(arguments: argparse.Namespace) -> int:
    """Run the command; its exit status."""
    found = compared(arguments.folders)
    if arguments.json:
        print(json_text(found, indent=1))
    elif arguments.latex:
        print(latex(found), end="")
    else:
        print_comparison(found, Console())
    return 0


def compared(folders: Sequence[Path]) -> Comparison:
    """The comparison of the runs in these folders, or in their folders ``seed-*``.

    Raises ``DataError`` for runs that differ in more than their seeds, and for a seed that is there twice;
    ``StorageError`` for a file that is no result.
    """
    paths = [path for folder in folders for path in _results(folder)]
    results = [read_json(path) for path in paths]
    first = results[0]
    runs: dict[str, dict[int, tuple[Path, Result, StrategyResult]]] = {}
    for path, result in zip(paths, results, strict=True):
        if not result.settings:
            raise DataError(f"{path}: no settings, expected a result of this version: run it again")
        _require_same(conditions(first), conditions(result), paths[0], path)
        for strategy in result.strategies:
            seeds = runs.setdefault(strategy.name, {})
            if result.seed in seeds:
                raise DataError(
                    f"{strategy.name}: seed {result.seed} in {seeds[result.seed][0]} and in {path}, "
                    "expected each seed once"
                )
            for other, one, _ in seeds.values():
                name = strategy.name
                _require_same(conditions_of(one, name), conditions_of(result, name), other, path)
            seeds[result.seed] = path, result, strategy
    figures = {
        name: {seed: _figures(strategy) for seed, (_, _, strategy) in found.items()}
        for name, found in runs.items()
    }
    rows = [_row(name, found) for name, found in figures.items()]
    about = first.dataset, first.split, first.devices, first.metric
    return Comparison(*about, rows, list(_differences(figures)))


def _results(folder: Path) -> list[Path]:
    one, several = folder / "result.json", sorted(folder.glob("seed-*/result.json"))
    if one.exists() == bool(several):
        found = "both a result.json and some in seed-*" if several else "no result.json"
        raise DataError(f"{folder}: {found}, expected one here or in seed-*")
    return several or [one]


def _require_same(
    old: Mapping[str, Any], new: Mapping[str, Any], old_path: Path, new_path: Path
) -> None:
    """Raise ``DataError``, which names what differs, unless the conditions are the same."""
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if differing:
        key = differing[0]
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise DataError(
            f"{key}{more}: {old.get(key)!r} in {old_path}, {new.get(key)!r} in {new_path}, "
            "expected runs that differ in the seed alone"
        )


def _figures(strategy: StrategyResult) -> _Figures:
    """A run's figures, without those that it does not have."""
    found = {key: of(strategy) for key, of in _FIGURES.items()}
    return {key: value for key, value in found.items() if value is not None}


def _differences(runs: Mapping[str, Mapping[int, _Figures]]) -> Iterator[Row]:
    """The first strategy against each other one with which it has seeds in common."""
    first, *others = runs
    for other in others:
        seeds = runs[first].keys() & runs[other].keys()
        by_seed = {seed: _minus(runs[first][seed], runs[other][seed]) for seed in seeds}
        if by_seed:
            yield _row(f"{first} - {other}", by_seed)


def _minus(one: _Figures, other: _Figures) -> _Figures:
    return {key: one[key] - other[key] for key in _DIFFERENCES if key in one and key in other}


def _row(name: str, runs: Mapping[int, _Figures]) -> Row:
    figures: dict[str, Figure] = {}
    for key in _FIGURES:
        values = [found[key] for found in runs.values() if key in found]
        if len(values) == len(runs):
            std = statistics.stdev(values) if len(values) > 1 else None
            figures[key] = Figure(statistics.fmean(values), std)
    return Row(name, sorted(runs), figures)


def print_comparison(found: Comparison, console: Console) -> None:
    """Print the strategies as tables: accuracies, bytes, the central test set, then the differences."""
    _say(console, f"{found.dataset}, {found.devices} devices, {found.split}")
    for columns in _columns(found):
        _print_table(console, found.strategies, columns)
    if found.differences:
        _print_table(console, found.differences, _difference_columns(found))
    _say(
        console,
        f"{found.metric.words}, pooled over all test examples and as a mean over devices, and bytes per "
        f"device and round after its first: mean ± sample standard deviation over {_seeds(found)}",
    )


def _print_table(console: Console, rows: Sequence[Row], columns: Sequence["_Column"]) -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column.head, justify="right", no_wrap=True)
    for place, row in enumerate(rows):
        table.add_row(Text(row.name, style="bold"), *(column.cells[place] for column in columns))
    console.print(table)


def latex(found: Comparison) -> str:
    """The strategies as a table for LaTeX with booktabs, names escaped."""
    columns = [column for columns in _columns(found) for column in columns]
    heads = ["Strategy", *(escaped(column.head[0].upper() + column.head[1:]) for column in columns)]
    about = f"% {found.dataset}, {found.devices} devices, {found.split}; {_seeds(found)}"
    lines = [
        about.replace("\n", " "),
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
        " & ".join(heads) + r" \\",
        "\\midrule",
    ]
    for place, row in enumerate(found.strategies):
        cells = (column.cells[place].replace("±", r"$\pm$") for column in columns)
        lines.append(" & ".join([escaped(row.name), *cells]) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def escaped(text: str) -> str:
    """Text as LaTeX writes it."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _difference_columns(found: Comparison) -> list["_Column"]:
    scale, style = (100.0, "+.1f") if found.metric.share else (1.0, "+.4g")
    columns: list[_Column] = []
    for key, head in _DIFFERENCES.items():
        figures = [row.figures.get(key) for row in found.differences]
        if any(figures):
            columns.append(_Column(head, [_cell(figure, scale, style) for figure in figures]))
    return columns


class _Column(NamedTuple):
    """A column as text: its head with the unit, and each strategy's cell."""

    head: str
    cells: list[str]


def _columns(found: Comparison) -> Iterator[list[_Column]]:
    """The columns of each table, without those that no strategy has a figure for."""
    for heads in _TABLES:
        columns: list[_Column] = []
        for key, head in heads.items():
            figures = [row.figures.get(key) for row in found.strategies]
            if any(figures):
                columns.append(_column(key, head, figures, found.metric))
        if columns:
            yield columns


def _column(key: str, head: str, figures: Sequence[Figure | None], metric: Metric) -> _Column:
    means = [figure.mean for figure in figures if figure is not None]
    if key.startswith("bytes_"):  # in the unit of the least, with as many places as that one has
        number, _, unit = size(min(means)).partition(" ")
        scale, places = float(number) / min(means), len(number.partition(".")[2])
        head, style = f"{head}, {unit}", f".{places}f"
        scale = 10.0 ** round(math.log10(scale))
    elif metric.share:
        scale, style = 100.0, ".1f"
        head = head if head.endswith("%") else f"{head}, %"
    else:
        scale, style = 1.0, ".4g"
    return _Column(head, [_cell(figure, scale, style) for figure in figures])


def _cell(figure: Figure | None, scale: float, style: str) -> str:
    if figure is None:
        return "-"
    mean = format(scale * figure.mean, style)
    if figure.std is None:
        return mean
    spread = style.removeprefix("+")
    return f"{mean} ± {format(scale * figure.std, '.2g' if spread == '.4g' else spread)}"


def _seeds(found: Comparison) -> str:
    """``3 seeds (42, 43, 44)``, of each strategy where they differ."""
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for row in found.strategies:
        by_seeds.setdefault(tuple(row.seeds), []).append(row.name)
    words = {
        seeds: f"{len(seeds)} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))})"
        for seeds in by_seeds
    }
    if len(by_seeds) == 1:
        return "".join(words.values())
    return listed([f"{words[seeds]} of {listed(names)}" for seeds, names in by_seeds.items()])


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
