"""Formats published figures next to reproduced ones, as rows of text for terminal and page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tools.reproduce.cells import TABLES, Cell, Table
from tools.reproduce.outcome import Outcome
from tools.reproduce.sections import NONE, Section, sections

from sedge_cloud.figures.numbers import duration, size

HEADS = (
    "method", "seed", "round", "before", "published", "after", "published", "worst 10 %",
    "up", "down", "took",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One row of a table, with its texts in the order of ``HEADS``."""

    texts: tuple[str, ...]
    differs: bool

    @property
    def compares(self) -> bool:
        """True if the paper published a figure for this row."""
        return self.texts[4] != NONE or self.texts[6] != NONE


def tables(outcomes: Sequence[Outcome]) -> Iterable[tuple[Table, list[Outcome]]]:
    """Yield the tables that have outcomes, each with its outcomes sorted by cell, seed and length."""
    for table in TABLES.values():
        names = table.methods
        found = [one for one in outcomes if one.table == table.name and one.cell in names]
        if found:
            yield (
                table,
                sorted(found, key=lambda o: (names.index(o.cell), o.seed, o.rounds, o.backend)),
            )


def rows(table: Table, outcomes: Sequence[Outcome]) -> Iterable[Row]:
    """Yield a table's rows: one for each checkpoint and, if a maximum was published, one for the maximum.

    A run shorter than the table's has no comparable maximum.
    """
    for outcome in outcomes:
        cell = table.cell(outcome.cell)
        yield from _checkpoints(table, cell, outcome)
        if cell.best is not None and outcome.rounds >= table.rounds:
            yield _best(table, cell, outcome)


def _checkpoints(table: Table, cell: Cell, outcome: Outcome) -> Iterable[Row]:
    for place, found in enumerate(outcome.checkpoints):
        before, after = cell.published.get(found.round), cell.published_after.get(found.round)
        last = place == len(outcome.checkpoints) - 1
        texts = (
            outcome.method,
            str(outcome.seed),
            str(found.round),
            _percent(found.before),
            _published(before),
            _percent(found.after),
            _published(after),
            _percent(found.before_worst_tenth),
            *(_cost(outcome) if last else (NONE, NONE, NONE)),
        )
        yield Row(texts, before is not None and abs(100 * found.before - before) > table.tolerance)


def _best(table: Table, cell: Cell, outcome: Outcome) -> Row:
    """Return a row with the published maximum and our own."""
    found = best(table, outcome)
    columns = (_percent(found), _published(cell.best))
    nothing = (NONE, NONE)
    before, after = (columns, nothing) if table.best_of == "before" else (nothing, columns)
    texts = (outcome.method, str(outcome.seed), "best", *before, *after, *(NONE,) * 4)
    return Row(texts, cell.best is not None and abs(100 * found - cell.best) > table.tolerance)


def best(table: Table, outcome: Outcome) -> float:
    """Return this run's maximum, from 0 to 1, of the accuracy whose maximum the authors report."""
    if table.best_of == "before":
        return max(point.before for point in outcome.checkpoints)
    return max(point.after for point in outcome.points)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return every table that has outcomes, in Markdown."""
    parts: list[str] = []
    for table, found in tables(outcomes):
        parts += [f"## {table.title}", "", f"Published: {table.source}.", ""]
        parts += [_line(HEADS), _line(["---"] * len(HEADS))]
        parts += [_line(_marked(row)) for row in rows(table, found)]
        there = (outcome for outcome in found if outcome.cell not in table.dropped)
        parts += ["", *dict.fromkeys(f"    {outcome.command}" for outcome in there), ""]
        if table.dropped:
            parts += [f"Not kept, and no longer in the code: {', '.join(table.dropped)}.", ""]
        for section in sections(table, found):
            parts += _sectioned(section)
    return "\n".join(parts)


def _sectioned(section: Section) -> list[str]:
    rule = ["---"] * len(section.heads)
    return [section.words, "", *map(_line, (section.heads, rule, *section.lines)), ""]


def _marked(row: Row) -> Sequence[str]:
    """Return a row's texts, with our figure in bold if it differs by more than the table's tolerance."""
    if not row.differs:
        return row.texts
    own = 3 if row.texts[3] != NONE else 5
    return [f"**{text}**" if place == own else text for place, text in enumerate(row.texts)]


def _cost(outcome: Outcome) -> tuple[str, str, str]:
    return size(outcome.bytes_up), size(outcome.bytes_down), duration(outcome.seconds)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _published(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"
