"""A comparison as one HTML file: its tables, and the curves of every strategy over all seeds."""

from collections.abc import Sequence

from sedge_cloud.figures.drawing import Plot, metric_axis, round_axis, series
from sedge_emulate.compare.comparison import Comparison, Runs, a_run
from sedge_emulate.compare.grids import Grid, about, caption
from sedge_emulate.compare.targets import MEANS
from sedge_emulate.report.page import environment


def page(runs: Runs, found: Comparison, grids: Sequence[Grid]) -> str:
    """Render the HTML page."""
    return (
        environment()
        .get_template("compare.html")
        .render(
            title=about(found),
            caption=caption(found),
            grids=grids,
            names=list(runs),
            courses=courses(runs),
        )
    )


def courses(runs: Runs) -> list[Plot]:
    """Plot the metric by round: the mean over the seeds, and a band from the worst to the best."""
    metric = a_run(runs).result.metric
    every = [run.strategy.rounds for found in runs.values() for run in found.values()]
    axis = round_axis([r.round for rounds in every for r in rounds])
    plots: list[Plot] = []
    for when, mean in MEANS.items():
        plot = Plot(
            f"{when.capitalize()} local training",
            axis,
            metric_axis([mean(r) for rounds in every for r in rounds], metric),
        )
        for i, found in enumerate(runs.values()):
            by_round: dict[int, list[float]] = {}
            for run in found.values():
                for r in run.strategy.rounds:
                    by_round.setdefault(r.round, []).append(mean(r))
            at, values = list(by_round), list(by_round.values())
            if at:
                low, high = [min(each) for each in values], [max(each) for each in values]
                plot.area(at, low, high, series(i), 0.15)
                plot.line(at, [sum(each) / len(each) for each in values], series(i))
        plots.append(plot)
    return plots
