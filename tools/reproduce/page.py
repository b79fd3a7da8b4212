"""The reproduced tables as one HTML file, with accuracy over rounds and over bytes."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate

from matplotlib.ticker import MaxNLocator
from tools.reproduce.cells import Table
from tools.reproduce.outcome import Outcome, Point
from tools.reproduce.sections import sections
from tools.reproduce.tables import HEADS, rows, tables

from sedge_emulate.charts import Panel, accuracy_axis, bytes_below, line
from sedge_emulate.markup import document, panels, section, series
from sedge_emulate.markup import table as html_table
from sedge_emulate.svg import axes as new_axes

_TITLE = "Published tables, reproduced"
_CAPTION = (
    "Per cent of all test examples, before and after local training; 'worst 10 %' is the mean of the "
    "tenth of the devices that does worst before it. Bytes are of all devices, both over the whole run."
)


def page(outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    opening = f"<h1>{escape(_TITLE)}</h1>"
    found = [_table(table, mine) for table, mine in tables(outcomes)]
    return document(_TITLE, [opening, *found])


def _table(table: Table, outcomes: Sequence[Outcome]) -> str:
    accuracies = _grid(HEADS, (row.texts for row in rows(table, outcomes)))
    further = "".join(
        f"<p>{escape(one.words)}</p>{_grid(one.heads, one.lines)}"
        for one in sections(table, outcomes)
    )
    keys = "".join(
        f'<span class="key" style="{series(i)}">{escape(_name(outcome))}</span>'
        for i, outcome in enumerate(outcomes)
    )
    plots = panels([*_over_rounds(outcomes), *_over_bytes(outcomes)])
    words = f"Published: {table.source}. {_CAPTION}"
    return section(table.title, words, f'{accuracies}{further}<p class="keys">{keys}</p>\n{plots}')


def _grid(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in heads)}</tr>"
    body = (f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>" for texts in lines)
    return html_table(head, body)


def _over_rounds(outcomes: Sequence[Outcome]) -> Iterable[Panel]:
    for moment in ("before", "after"):
        title = f"Participants {moment} local training"
        with new_axes(f"{title}, by round") as (axes, drawing):
            values: list[float] = []
            for i, outcome in enumerate(outcomes):
                y = _smooth([getattr(point, moment) for point in outcome.points])
                values += y
                line(axes, i, [point.round for point in outcome.points], y)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
            axes.set_xlabel("round")
            accuracy_axis(axes, values)
        yield Panel(title, drawing.svg)


def _over_bytes(outcomes: Sequence[Outcome]) -> Iterable[Panel]:
    """Accuracy before local training against the bytes of both directions."""
    title = "Before local training, against bytes"
    with new_axes(title) as (axes, drawing):
        values: list[float] = []
        totals: list[int] = []
        for i, outcome in enumerate(outcomes):
            sums = list(accumulate(_bytes(point) for point in outcome.points))
            y = _smooth([point.before for point in outcome.points])
            values += y
            totals += sums
            line(axes, i, sums, y)
        bytes_below(axes, min(totals, default=1), max(totals, default=1))
        axes.set_xlabel("bytes of all devices, both ways, logarithmic")
        accuracy_axis(axes, values)
    yield Panel(title, drawing.svg)


def _smooth(values: Sequence[float], width: int = 10) -> list[float]:
    """The running mean of up to ``width`` rounds: each round has other participants."""
    return [
        sum(values[max(0, end - width) : end]) / (end - max(0, end - width))
        for end in range(1, len(values) + 1)
    ]


def _bytes(point: Point) -> int:
    return point.bytes_up + point.bytes_down


def _name(outcome: Outcome) -> str:
    return f"{outcome.method}, seed {outcome.seed}"
