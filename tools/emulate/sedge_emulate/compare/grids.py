"""Formats a comparison as tables of strings: for the terminal, for LaTeX with booktabs, for Markdown."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sedge_cloud.figures.numbers import listed, measured, size
from sedge_emulate.compare.comparison import Comparison, Figure, Row
from sedge_emulate.compare.moments import MOMENTS, WORDS, Moment
from sedge_emulate.compare.targets import Reached
from sedge_emulate.paired import Tested
from sedge_protocol.wire.objective import Metric

_NONE = "-"
# Words in a strategy's name that have up to this many letters are never broken across two lines.
_MAX_NAME = 20
_BYTES = {"bytes_up": "up", "bytes_down": "down"}
_FIRST_BYTES = {"first_bytes_up": "first up", "first_bytes_down": "first down"}
_CENTRAL = {
    "central_before": "for all, before",
    "central_after": "for all, after",
    "global_model": "global model",
}
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$",
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A table: its title, its column heads, and its rows, each with a name and a string per column."""

    title: str
    heads: list[str]
    rows: list[tuple[str, list[str]]]


def grids(found: Comparison, targets: Sequence[Reached] = (), target: float = 0.0) -> list[Grid]:
    """Return all tables that have rows.

    Their order is: each moment's figures and bytes, the central test set, the differences, the target.
    """
    made = [_moment_grid(found, moment) for moment in MOMENTS]
    made.append(_grid("", found.strategies, _CENTRAL, found.metric))
    made += [_difference_grid(found, moment) for moment in MOMENTS]
    made.append(_target_grid(targets, target, found.metric))
    return [grid for grid in made if grid.heads and grid.rows]


def about(found: Comparison) -> str:
    """Return a line that says what was compared: data set, number of devices, split."""
    return f"{found.dataset}, {found.devices} devices, {found.split}"


def caption(found: Comparison) -> str:
    """Return the caption that explains the figures in one or more sentences."""
    return (
        f"{found.metric.words}: pooled over all test examples, the mean over devices, the mean over "
        "their worst tenth, and the standard deviation over devices; bytes per device and round after "
        f"its first: mean ± sample standard deviation over {_seeds(found)}. {unequal_work(found)}"
    ).rstrip()


def unequal_work(found: Comparison) -> str:
    """Return a sentence that lists the strategies' epochs per round, or "" if all train equally long."""
    by_epochs: dict[float, list[str]] = {}
    for row in found.strategies:
        if "epochs" in row.figures:
            by_epochs.setdefault(row.figures["epochs"].mean, []).append(row.name)
    if len(by_epochs) < 2:
        return ""
    words = [f"{listed(names)} {epochs:g}" for epochs, names in sorted(by_epochs.items())]
    return f"Training epochs per round: {'; '.join(words)}."


def print_grids(found: Comparison, made: Iterable[Grid], console: Console) -> None:
    """Print the tables below a line that says what was compared, and above the caption."""
    _say(console, about(found))
    for grid in made:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        longest = max(len(word) for name, _ in grid.rows for word in name.split())
        table.add_column(grid.title, overflow="fold", min_width=min(longest, _MAX_NAME))
        for head in grid.heads:  # on a narrow terminal, wraps between a value and its spread
            table.add_column(head, justify="right")
        for name, cells in grid.rows:
            table.add_row(Text(name, style="bold"), *cells)
        console.print(table)
    _say(console, caption(found))


def latex(found: Comparison, made: Iterable[Grid]) -> str:
    """Return the tables in LaTeX with booktabs. All text is escaped."""
    lines = [f"% {about(found)}; {_seeds(found)}".replace("\n", " ")]
    for grid in made:
        heads = [grid.title, *grid.heads]
        lines += [
            f"\\begin{{tabular}}{{l{'r' * len(grid.heads)}}}",
            "\\toprule",
            " & ".join(escaped(head[:1].upper() + head[1:]) for head in heads) + r" \\",
            "\\midrule",
            *(" & ".join(map(escaped, (name, *cells))) + r" \\" for name, cells in grid.rows),
            "\\bottomrule",
            "\\end{tabular}",
        ]
    return "\n".join([*lines, ""])


def escaped(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def markdown(made: Iterable[Grid]) -> Iterator[str]:
    """Yield the tables' lines, with an empty line between tables."""
    for place, grid in enumerate(made):
        heads = [grid.title, *grid.heads]
        yield from [""] * (place > 0)
        for cells in (heads, ["---"] * len(heads), *([name, *row] for name, row in grid.rows)):
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _moment_grid(found: Comparison, moment: Moment) -> Grid:
    heads = {
        f"{moment}_pooled": "pooled",
        moment: "mean",
        f"{moment}_worst_tenth": "worst 10 %",
        f"{moment}_spread": "spread",
    }
    if not any(moment in row.figures for row in found.strategies):
        return Grid("", [], [])
    moved = _FIRST_BYTES if moment == "newcomer" else _BYTES
    return _grid(WORDS[moment], found.strategies, {**heads, **moved}, found.metric)


def _grid(title: str, rows: Sequence[Row], heads: Mapping[str, str], metric: Metric) -> Grid:
    """Return a table with a column for each figure in ``heads``, except figures that no row has."""
    columns: list[tuple[str, list[str]]] = []
    for key, head in heads.items():
        figures = [row.figures.get(key) for row in rows]
        if any(figures):
            columns.append(_column(key, head, figures, metric))
    cells = [[column[place] for _, column in columns] for place in range(len(rows))]
    names = [row.name for row in rows]
    return Grid(title, [head for head, _ in columns], list(zip(names, cells, strict=True)))


def _column(
    key: str, head: str, figures: Sequence[Figure | None], metric: Metric
) -> tuple[str, list[str]]:
    """Return a column's head with its unit, and the text for each row."""
    means = [figure.mean for figure in figures if figure is not None]
    if "bytes_" in key:  # in the unit of the smallest value and with as many decimals as it has
        number, _, unit = size(min(means)).partition(" ")
        scale, places = float(number) / min(means), len(number.partition(".")[2])
        head, style = f"{head}, {unit}", f".{places}f"
        scale = 10.0 ** round(math.log10(scale))
        figures = [figure and Figure(figure.mean, None) for figure in figures]
    elif metric.share:
        scale, style = 100.0, ".1f"
        head = head if head.endswith("%") else f"{head}, %"
    else:
        scale, style = 1.0, ".4g"
    return head, [_cell(figure, scale, style) for figure in figures]


def _cell(figure: Figure | None, scale: float, style: str) -> str:
    if figure is None:
        return _NONE
    mean = format(scale * figure.mean, style)
    if figure.std is None:
        return mean
    spread = style.removeprefix("+")
    return f"{mean} ± {format(scale * figure.std, '.2g' if spread == '.4g' else spread)}"


def _difference_grid(found: Comparison, moment: Moment) -> Grid:
    """Return a table of the first strategy's figures minus those of each other strategy."""
    first = found.strategies[0].name
    scale, style = (100.0, "+.1f") if found.metric.share else (1.0, "+.4g")
    heads = ["devices", "pooled", "mean", "better : worse", "sign p", "Wilcoxon p"]
    rows = [
        (
            row.name.removeprefix(f"{first} - "),
            [
                str(row.tests[moment].devices),
                _cell(row.figures.get(f"{moment}_pooled"), scale, style),
                _cell(row.figures.get(moment), scale, style),
                *_tested(row.tests[moment]),
            ],
        )
        for row in found.differences
        if moment in row.tests
    ]
    return Grid(f"{WORDS[moment]}: {first} minus", heads, rows)


def _tested(found: Tested) -> list[str]:
    return [f"{found.better} : {found.worse}", *map(_p, (found.sign_p, found.wilcoxon_p))]


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else "< .0001"


def _target_grid(targets: Sequence[Reached], target: float, metric: Metric) -> Grid:
    heads = ["rounds", "bytes a device", "virtual seconds", "seeds"]
    rows = [(f"{found.name}, {found.when}", _cost(found, metric)) for found in targets]
    return Grid(f"to reach {measured(target, metric)}", heads, rows)


def _cost(found: Reached, metric: Metric) -> list[str]:
    if found.rounds is None or found.bytes is None or found.seconds is None:
        return [
            f"not reached, best {measured(found.best, metric)}",
            _NONE,
            _NONE,
            f"0 of {found.runs}",
        ]
    return [
        _cell(found.rounds, 1.0, ".1f"),
        size(found.bytes.mean),
        _cell(found.seconds, 1.0, ".1f"),
        f"{len(found.seeds)} of {found.runs}",
    ]


def _seeds(found: Comparison) -> str:
    """Describe the seeds, as in ``3 seeds (42, 43, 44)``; differing strategies are listed separately."""
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
