"""The report's plots: the metric by round, time, device and bytes, and personal parameters by round."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from msgspec.structs import replace

from sedge_cloud.figures.drawing import (
    GREY,
    HEIGHT,
    RED,
    WIDTH,
    Axis,
    Plot,
    bytes_axis,
    count_axis,
    metric_axis,
    round_axis,
    series,
    time_axis,
)
from sedge_cloud.figures.numbers import measured, size
from sedge_cloud.outlets.page.charts import stacked
from sedge_emulate.headline import rates_of, worst_first
from sedge_emulate.result import DeviceResult, Result, RoundResult, StrategyResult
from sedge_protocol.wire.objective import Metric

# With more devices than this, one stroke per device would be thinner than a pixel.
MAX_STROKES = 400
_HUNDREDTHS = 100
_MARKED_ROUNDS = 40
# With more rounds than this, the labels with numbers of late devices would overlap and are left out.
_NUMBERED_ROUNDS = 30
# The height of one round's strip, and the maximum total height of all strips, in pixels.
_STRIP, _MAX_STRIPS = 16.0, 420.0
# Below this accuracy, a dot is too low for a label below it.
_LOW = 0.05
# Before and after training: a title, a round's mean and, if known, the mean of the round's worst tenth.
_MOMENTS: tuple[
    tuple[str, Callable[[RoundResult], float], Callable[[RoundResult], float | None]], ...
] = (
    ("Before local training", lambda r: r.before_mean, lambda r: r.before_worst),
    ("After local training", lambda r: r.after_mean, lambda r: r.after_worst),
)


def curve(plot: Plot, i: int, x: Sequence[float], y: Sequence[float]) -> None:
    """Draw the i-th strategy's curve, with dots at its points if there are not too many."""
    plot.line(x, y, series(i))
    if len(x) <= _MARKED_ROUNDS:
        plot.dots(x, y, series(i), 5)


def metric_plots(result: Result, x: Axis, at: Callable[[RoundResult], float]) -> list[Plot]:
    """Plot the metric before and after local training, with one line per strategy.

    ``at`` returns a round's position on the axis ``x``. A pale line shows the mean of the worst tenth.
    """
    plots: list[Plot] = []
    for title, mean, worst in _MOMENTS:
        values = [mean(r) for s in result.strategies for r in s.rounds]
        lower = [v for s in result.strategies for r in s.rounds if (v := worst(r)) is not None]
        plot = Plot(title, x, metric_axis([*values, *lower], result.metric))
        for i, strategy in enumerate(result.strategies):
            rounds = strategy.rounds
            known = [(at(r), v) for r in rounds if (v := worst(r)) is not None]
            plot.line([one for one, _ in known], [v for _, v in known], series(i), 1.2, 0.5)
            curve(plot, i, [at(r) for r in rounds], [mean(r) for r in rounds])
        plots.append(plot)
    return plots


def by_round(result: Result) -> list[Plot]:
    """Plot the metric by round number."""
    return metric_plots(result, _rounds(result), lambda r: r.round)


def over_time(result: Result) -> list[Plot]:
    """Plot the metric by closing time, then each strategy's rounds as strips.

    Returns no plots if no times are known.
    """
    result = replace(result, strategies=[_timed(s) for s in result.strategies])
    longest_s = max((r.closed_s for s in result.strategies for r in s.rounds), default=0.0)
    if not longest_s:
        return []
    axis = time_axis(longest_s)
    most = max(len(s.rounds) for s in result.strategies)
    strips = [_strips(i, s, axis, most) for i, s in enumerate(result.strategies)]
    return [*metric_plots(result, axis, lambda r: r.closed_s), *strips]


def _timed(strategy: StrategyResult) -> StrategyResult:
    """Return a copy of the result with only the rounds whose times are known."""
    return replace(strategy, rounds=[r for r in strategy.rounds if r.closed_s])


def of_devices(result: Result) -> list[Plot]:
    """Plot the devices' final metrics before and after training for each strategy, worst device first.

    With more than ``MAX_STROKES`` devices, plot the distribution of their metrics instead.
    """
    metric = result.metric
    values = [v for s in result.strategies for d in s.devices for v in (d.before, d.after)]
    if metric.share:  # leave room below the lowest dot for its label
        values = [max(v - _LOW, 0) for v in values]
    plots: list[Plot] = []
    for i, strategy in enumerate(result.strategies):
        devices = worst_first(strategy.devices, metric)
        x = count_axis(1, max(len(devices), 2), "devices, from worst to best before training", 0.6)
        plot = Plot(strategy.name, x, metric_axis(values, metric))
        if len(devices) > MAX_STROKES:
            _distribution(plot, series(i), devices)
        else:
            _each(plot, series(i), devices, metric)
        if devices:
            _name_worst(plot, devices[0], metric)
        plots.append(plot)
    return plots


def of_bytes(result: Result) -> list[Plot]:
    """Plot a device's bytes per later round on a logarithmic axis, next to the size of a dense model.

    There is one plot for each direction.
    """
    dense = max(result.model.dense_bytes, 1)
    plots: list[Plot] = []
    for title, way in (("Device to coordinator", "up"), ("Coordinator to device", "down")):
        lines = [
            [(r.round, float(getattr(rates_of([r]).device, way))) for r in s.rounds]
            for s in result.strategies
        ]
        shown = [[(number, each) for number, each in points if each] for points in lines]
        sizes = [each for points in shown for _, each in points]
        axis = bytes_axis(min([dense, *sizes]), max([dense, *sizes]))
        plot = Plot(title, _rounds(result), axis)
        for i, points in enumerate(shown):
            curve(plot, i, [number for number, _ in points], [each for _, each in points])
        # Put the label on the side of the line where there are no curves.
        shift = 14.0 if sizes and min(sizes) > dense else -6.0
        plot.rule(dense, f"the whole model, {size(dense)}", shift)
        plots.append(plot)
    return plots


def of_cost(result: Result) -> list[Plot]:
    """Plot the metric against the total bytes of all devices. A dot marks the final evaluation."""
    totals = [
        list(accumulate(r.bytes_up + r.bytes_down for r in s.rounds)) for s in result.strategies
    ]
    known = [total for sums in totals for total in sums if total]
    x = bytes_axis(
        min(known, default=1), max(known, default=1), "bytes of all devices, both ways, log scale"
    )
    plots: list[Plot] = []
    for (title, mean, _), last in zip(_MOMENTS, ("before", "after"), strict=True):
        finals = [float(getattr(s, last).mean) for s in result.strategies]
        plot = Plot(
            title,
            x,
            metric_axis(
                [*finals, *(mean(r) for s in result.strategies for r in s.rounds)], result.metric
            ),
        )
        for i, (s, sums) in enumerate(zip(result.strategies, totals, strict=True)):
            points = [(total, mean(r)) for total, r in zip(sums, s.rounds, strict=True) if total]
            if points:
                at, values = [total for total, _ in points], [value for _, value in points]
                plot.line(at, values, series(i), 1.2, 0.5)
                plot.dots(at[-1:], [finals[i]], series(i), 10)
        plots.append(plot)
    return plots


def of_personal(result: Result) -> list[Plot]:
    """Plot how many personal parameters a device has in each tensor, stacked, by round."""
    plots: list[Plot] = []
    for strategy in result.strategies:
        title = f"{strategy.name}: personal parameters of a device, by round"
        numbers = [r.round for r in strategy.rounds]
        plot = stacked(title, numbers, _rounds(result), [r.personal for r in strategy.rounds])
        if plot is not None:
            plots.append(plot)
    return plots


def _rounds(result: Result) -> Axis:
    return round_axis([r.round for s in result.strategies for r in s.rounds])


def _each(plot: Plot, colour: str, devices: list[DeviceResult], metric: Metric) -> None:
    """Draw one stroke per device, from its metric before training to its metric after training."""
    # Strokes and dots are wide for 10 devices and fine for hundreds.
    step = min(WIDTH / max(len(devices), 1), 14)
    x = np.arange(1.0, len(devices) + 1)
    before = np.array([d.before for d in devices])
    after = np.array([d.after for d in devices])
    worsened = after < before if metric.better == "higher" else after > before
    for worse, stroke in ((False, colour), (True, RED)):
        at = np.flatnonzero(worsened == worse)
        plot.strokes((x[at], before[at]), (x[at], after[at]), stroke, max(step / 4, 0.5), 0.45)
    dot = min(max(step * 0.6, 1.5), 7)
    plot.dots(x, before, GREY, dot)
    plot.dots(x, after, colour, dot)


def _distribution(plot: Plot, colour: str, devices: list[DeviceResult]) -> None:
    """Draw the metric before training as a line, and the median and quartiles after it.

    Devices are grouped into hundredths for the quartiles.
    """
    x = np.linspace(1, len(devices), _HUNDREDTHS)
    before = np.array([d.before for d in devices])
    after = np.array_split(np.array([d.after for d in devices]), _HUNDREDTHS)
    low, median, high = np.array([np.quantile(part, (0.25, 0.5, 0.75)) for part in after]).T
    plot.area(x, low, high, colour, 0.25)
    plot.line(x, median, colour)
    plot.line(x, np.interp(x, np.arange(1, len(devices) + 1), before), GREY)


def _name_worst(plot: Plot, worst: DeviceResult, metric: Metric) -> None:
    # The label goes below its dot, where nothing else is drawn, unless the axis is there.
    shift = (10.0, -6.0) if metric.share and worst.before < _LOW else (10.0, 14.0)
    words = f"{worst.device}: {measured(worst.before, metric)} → {measured(worst.after, metric)}"
    plot.text(1, worst.before, words, shift)


def _strips(i: int, strategy: StrategyResult, x: Axis, most: int) -> Plot:
    """Plot each round as a strip from opening to close, the first at the top.

    A red mark shows that devices were late.
    """
    rounds = strategy.rounds
    height = min(70 + min(_STRIP * most, _MAX_STRIPS), 2 * HEIGHT)
    numbers = [r.round for r in rounds] or [1]
    down = count_axis(min(numbers), max(numbers), "round", 0.8)
    y = Axis(down.high, down.low, down.ticks, "round")
    plot = Plot(f"{strategy.name}, round by round", x, y, height)
    width = min(max(0.45 * height / max(most, 1), 0.8), 8)
    opened, closed = [r.opened_s for r in rounds], [r.closed_s for r in rounds]
    if rounds:
        plot.strokes((opened, numbers), (closed, numbers), series(i), width, 0.75)
    late = [r for r in rounds if r.late_devices]
    plot.dots([r.closed_s for r in late], [r.round for r in late], RED, width + 1)
    for r in late if len(rounds) <= _NUMBERED_ROUNDS else ():
        # The label goes after the strip, or before it if there is no room on the right.
        behind = r.closed_s < 0.85 * x.high
        at, shift, anchor = (r.closed_s, 8.0, "start") if behind else (r.opened_s, -8.0, "end")
        plot.text(at, r.round, f"{len(r.late_devices)} late", (shift, 4.0), RED, anchor)
    return plot
