"""Runs cells of published tables one after another, and saves each outcome."""

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from tools.reproduce.cells import SHORT, SHORT_ROUNDS, TABLES, Table
from tools.reproduce.outcome import Outcome, read, write
from tools.reproduce.page import page
from tools.reproduce.play import Trial, play
from tools.reproduce.tables import HEADS, rows, tables

from sedge_emulate.emulation import locked
from sedge_emulate.progress import Progress
from sedge_emulate.result import write_whole
from sedge_emulate.training.choice import AUTO, NAMES
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.disk import translated

# The random generator of the released runs accepts no larger seed.
MAX_SEED = 2**32


def reproduce(arguments: argparse.Namespace) -> int:
    """Run the chosen cells, except those with a saved outcome. Returns the exit status."""
    console = Console()
    if arguments.list:
        for table in TABLES.values():
            console.print(f"{table.name}: {table.title}, {table.rounds} rounds", highlight=False)
            console.print(f"    {', '.join(cell.name for cell in table.cells)}", highlight=False)
        return 0
    trials = list(chosen_trials(arguments))
    with translated("make folder", arguments.out):
        arguments.out.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    with locked(arguments.out), Progress(console) as progress:
        for trial in trials:
            name = trial.file
            outcome = read(arguments.results / name)
            if outcome is None:
                home = arguments.out / "state" / name.removesuffix(".json")
                outcome = play(trial, home, arguments.workers or os.cpu_count() or 1, progress)
                write(outcome, arguments.results)
            outcomes.append(outcome)
        progress.finished()
    write_whole(page(outcomes).encode(), arguments.out / "reproduced.html")
    for table, found in tables(outcomes):
        _print(table, found, console)
    console.print(f"report: {arguments.out / 'reproduced.html'}", highlight=False)
    return 0


def chosen_trials(arguments: argparse.Namespace) -> Iterable[Trial]:
    """Return the cells to run. Raises ``ConfigError`` for unknown names and if there is nothing to run."""
    _require_values(arguments)
    if arguments.short + arguments.all + bool(arguments.tables) != 1:
        expected = "table names (see --list), --short or --all"
        raise ConfigError("reproduce", arguments.tables, expected)
    names = [name for name, _ in SHORT] if arguments.short else arguments.tables or list(TABLES)
    chosen = _named(names)
    cells = {cell.name for table in chosen for cell in table.cells}
    for name in arguments.only or ():
        if name not in cells:
            raise ConfigError("--only", name, f"one of {', '.join(sorted(cells))}")
    found = list(_cells(arguments, {table.name: table for table in chosen}.values()))
    if not found:
        expected = f"one of {', '.join(cell for _, cell in SHORT)} with --short"
        raise ConfigError("--only", ", ".join(arguments.only), expected)
    return found


def _require_values(arguments: argparse.Namespace) -> None:
    if arguments.rounds is not None and arguments.rounds < 1:
        raise ConfigError("--rounds", arguments.rounds, "1 or more")
    if arguments.workers < 0:
        raise ConfigError("--workers", arguments.workers, "0 or more")
    for seed in arguments.seed or ():
        if not 0 <= seed < MAX_SEED:
            raise ConfigError("--seed", seed, f"0 to {MAX_SEED - 1}")
    if arguments.backend not in (AUTO, *NAMES):
        expected = f"one of {', '.join((AUTO, *NAMES))}"
        raise ConfigError("--backend", arguments.backend, expected)


def _cells(arguments: argparse.Namespace, chosen: Iterable[Table]) -> Iterator[Trial]:
    for table in chosen:
        rounds = arguments.rounds or (SHORT_ROUNDS if arguments.short else table.rounds)
        for cell in table.cells:
            if arguments.short and (table.name, cell.name) not in SHORT:
                continue
            if arguments.only and cell.name not in arguments.only:
                continue
            for seed in arguments.seed or table.seeds:
                yield Trial(table, cell, seed, rounds, arguments.backend)


def _named(names: Sequence[str]) -> list[Table]:
    for name in names:
        if name not in TABLES:
            raise ConfigError("table", name, f"one of {', '.join(TABLES)}")
    return [TABLES[name] for name in names]


def _print(table: Table, outcomes: Sequence[Outcome], console: Console) -> None:
    grid = Grid(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, head in enumerate(HEADS):
        words = head.replace("published", "(publ.)").replace(" 10 %", "\n10 %")
        grid.add_column(words, justify="right" if place else "left", no_wrap=not place)
    for row in rows(table, outcomes):
        grid.add_row(*row.texts)
    console.print(f"{table.title}; published: {table.source}", highlight=False)
    console.print(grid)
