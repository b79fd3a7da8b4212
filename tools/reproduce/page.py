"""Draws the reproduced tables as one HTML file, with plots of accuracy over rounds and over bytes."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from tools.reproduce.outcome import Outcome
from tools.reproduce.sections import sections
from tools.reproduce.tables import HEADS, rows, tables

from sedge_cloud.figures.drawing import Axis, Plot, bytes_axis, metric_axis, round_axis
from sedge_emulate.report.page import environment
from sedge_emulate.report.plots import curve


def page(outcomes: Sequence[Outcome]) -> str:
    """Return the page as HTML."""
    template = environment().from_string((Path(__file__).parent / "reproduced.html").read_text())
    return template.render(
        title="Published tables, reproduced",
        found=list(tables(outcomes)),
        HEADS=HEADS,
        rows=rows,
        sections=sections,
        labels=_labels,
        drawn=_drawn,
    )


def _labels(outcomes: Sequence[Outcome]) -> list[str]:
    return [f"{outcome.method}, seed {outcome.seed}" for outcome in outcomes]


def _drawn(outcomes: Sequence[Outcome]) -> list[Plot]:
    """Plot participants' accuracy: before and after training over rounds, before training over bytes."""
    rounds = [[point.round for point in outcome.points] for outcome in outcomes]
    sums = [list(accumulate(p.bytes_up + p.bytes_down for p in o.points)) for o in outcomes]
    totals = [total for one in sums for total in one]
    numbers = round_axis([number for one in rounds for number in one])
    label = "bytes of all devices, both ways, log scale"
    cost = bytes_axis(min(totals, default=1), max(totals, default=1), label)
    return [
        _plot("Participants before local training", numbers, rounds, outcomes, "before"),
        _plot("Participants after local training", numbers, rounds, outcomes, "after"),
        _plot("Before local training, against bytes", cost, sums, outcomes, "before"),
    ]


def _plot(
    title: str, x: Axis, at: Sequence[Sequence[int]], outcomes: Sequence[Outcome], moment: str
) -> Plot:
    lines = [_smooth([getattr(point, moment) for point in outcome.points]) for outcome in outcomes]
    plot = Plot(title, x, metric_axis([value for line in lines for value in line]))
    for i, (places, values) in enumerate(zip(at, lines, strict=True)):
        curve(plot, i, places, values)
    return plot


def _smooth(values: Sequence[float], width: int = 10) -> list[float]:
    """Return the running mean over up to ``width`` rounds, because participants change every round."""
    return [
        sum(values[max(0, end - width) : end]) / (end - max(0, end - width))
        for end in range(1, len(values) + 1)
    ]
