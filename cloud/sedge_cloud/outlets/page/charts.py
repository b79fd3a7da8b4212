"""Draws the status page's plots from facts: rounds over time, accuracy, bytes and personal parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from sedge_cloud.facts.records import DeviceFacts, RoundFacts, RunFacts
from sedge_cloud.figures.drawing import (
    GREY,
    HEIGHT,
    NUM_SERIES,
    RED,
    Axis,
    Floats,
    Plot,
    bytes_axis,
    count_axis,
    metric_axis,
    pixels,
    round_axis,
    series,
    time_axis,
)
from sedge_cloud.figures.numbers import clock

# The plots show at most this many of the last rounds, and the time axis has at most this many strips.
SHOWN, STRIPS = 400, 60
# Points are marked individually if there are no more than this.
_MARKED = 40
_SPARK_WIDTH, _SPARK_HEIGHT = 72.0, 18.0


def over_time(run: RunFacts, at: datetime) -> list[Plot]:
    """Plot each round, from opening to closing, against the time of day; red means devices were missing."""
    rounds = [*run.rounds, *([run.open] if run.open is not None else [])][-STRIPS:]
    timed = [r for r in rounds if r.opened is not None]
    if not timed or timed[0].opened is None:
        return []
    first = timed[0].opened
    ends = [_seconds(r.closed or at, first) for r in timed]
    x = time_axis(max(ends))
    x = replace(x, label=f"{x.label} since {clock(first, at)}")
    numbers = [r.round for r in timed]
    down = count_axis(min(numbers), max(numbers), "", 0.8)
    height = min(80 + 16.0 * len(timed), 1.5 * HEIGHT)
    plot = Plot("Rounds over time", x, Axis(down.high, down.low, down.ticks), height)
    width = min(max(0.4 * height / len(timed), 1.5), 9)
    for colour, chosen in ((series(0), "closed"), (series(1), "open")):
        strips = [r for r in timed if (r.closed is not None) == (chosen == "closed")]
        if strips:
            numbers = [r.round for r in strips]
            begins = [_seconds(r.opened or first, first) for r in strips]
            plot.strokes(
                (begins, numbers),
                ([_seconds(r.closed or at, first) for r in strips], numbers),
                colour, width, 0.8,
            )  # fmt: skip
            plot.keys.append((colour, chosen))
    lacking = [r for r in timed if r.closed is not None and r.updates < r.cohort]
    if lacking:
        ends = [_seconds(r.closed or at, first) for r in lacking]
        plot.dots(ends, [r.round for r in lacking], RED, width + 1)
        plot.keys.append((RED, "closed without some of its devices"))
    return [plot]


def accuracy(run: RunFacts) -> list[Plot]:
    """Plot accuracy before and after local training, by round; an empty list before the first round."""
    rounds = [r for r in run.rounds[-SHOWN:] if r.before is not None]
    if not rounds:
        return []
    numbers, metric = [r.round for r in rounds], rounds[-1].metric
    values = {
        key: [float(getattr(r, key)) for r in rounds]
        for key in ("before", "before_worst", "after", "after_worst")
    }
    title = f"{metric.words[0].upper()}{metric.words[1:]} by round"
    axis = metric_axis([value for some in values.values() for value in some], metric)
    plot = Plot(title, round_axis(numbers), axis)
    for key, colour in (("before", series(0)), ("after", series(2))):
        plot.line(numbers, values[f"{key}_worst"], colour, 1.5, dashed=True)
        plot.line(numbers, values[key], colour)
        if len(numbers) <= _MARKED:
            plot.dots(numbers, values[key], colour, 5)
        plot.keys.append((colour, f"{key} local training"))
    plot.keys.append((GREY, "dashed: the worst tenth of the devices"))
    return [plot]


def of_device(device: DeviceFacts) -> list[Plot]:
    """Plot a device's metric before training in its last rounds; an empty list before its second round."""
    if len(device.history) < 2:
        return []
    back = range(1 - len(device.history), 1)
    x = count_axis(back[0], 0, "its last rounds, newest at 0", 0.5)
    plot = Plot("Before local training", x, metric_axis(device.history, device.metric))
    plot.line(back, device.history, series(0))
    plot.dots(back, device.history, series(0), 5)
    return [plot]


def moved(run: RunFacts) -> list[Plot]:
    """Plot all devices' bytes per round on a log scale; an empty list before the first round."""
    rounds = [r for r in run.rounds[-SHOWN:] if r.up and r.down]
    if not rounds:
        return []
    numbers = [r.round for r in rounds]
    ways = [("from devices", [r.up for r in rounds]), ("to devices", [r.down for r in rounds])]
    sizes = [size for _, values in ways for size in values]
    plot = Plot("Bytes of all devices", round_axis(numbers), bytes_axis(min(sizes), max(sizes)))
    for i, (name, values) in enumerate(ways):
        plot.line(numbers, values, series(i))
        if len(numbers) <= _MARKED:
            plot.dots(numbers, values, series(i), 5)
        plot.keys.append((series(i), name))
    return [plot]


def personal(run: RunFacts) -> list[Plot]:
    """Plot a device's personal parameters by layer and round, stacked; an empty list if there are none."""
    rounds = [r for r in run.rounds[-SHOWN:] if r.cohort]
    means = [{t: k / r.cohort for t, k in r.personal.items()} for r in rounds]
    numbers = [r.round for r in rounds]
    plot = stacked("Personal parameters of a device", numbers, round_axis(numbers), means)
    return [] if plot is None else [plot]


def stacked(
    title: str, rounds: Sequence[int], x: Axis, elements: Sequence[Mapping[str, float]]
) -> Plot | None:
    """Plot elements by tensor in each round, stacked. Returns None if there are none."""
    names, layers = _by_tensor(elements)
    if not names:
        return None
    sums = np.vstack([np.zeros(layers.shape[1]), np.cumsum(layers, axis=0)])
    plot = Plot(title, x, count_axis(0, float(sums[-1].max())))
    # Each round is drawn as a step so that even a single round is visible.
    at = np.column_stack([np.array(rounds) - 0.5, np.array(rounds) + 0.5]).ravel()
    for layer, name in enumerate(names):
        low, high = np.repeat(sums[layer], 2), np.repeat(sums[layer + 1], 2)
        plot.area(at, low, high, series(layer), 1)
        plot.keys.append((series(layer), name))
    return plot


def _by_tensor(rounds: Sequence[Mapping[str, float]]) -> tuple[list[str], Floats]:
    """Return the tensors that have elements, and how many they have, as an array (tensors, rounds).

    If there are more tensors than colours, the smallest ones are combined.
    """
    totals: dict[str, float] = {}
    for elements in rounds:
        for name, count in elements.items():
            totals[name] = totals.get(name, 0.0) + count
    shown, rest = list(totals), list[str]()
    if len(shown) > NUM_SERIES:
        rest = sorted(shown, key=lambda name: -totals[name])[NUM_SERIES - 1 :]
        shown = [name for name in shown if name not in rest]
    layers = [[elements.get(name, 0.0) for elements in rounds] for name in shown]
    if rest:
        shown.append(f"{len(rest)} others")
        layers.append([sum(elements.get(name, 0.0) for name in rest) for elements in rounds])
    return shown, np.array(layers)


def spark(values: Sequence[float]) -> str:
    """Return the path of a sparkline of a device's accuracies. Its scale spans at least ten points."""
    if len(values) < 2:
        return ""
    low = min(values)
    span = max(max(values) - low, 0.1)
    step = (_SPARK_WIDTH - 2) / (len(values) - 1)
    places = (
        f"{pixels(1 + i * step)} {pixels(_SPARK_HEIGHT - 2 - (v - low) / span * (_SPARK_HEIGHT - 4))}"
        for i, v in enumerate(values)
    )
    return f"M{' '.join(places)}"


def layer_rows(it: RoundFacts, tensors: Mapping[str, int]) -> list[tuple[str, float, float]]:
    """Return (tensor, personal elements per device, share of the tensor), the largest share first."""
    rows = [
        (name, count / it.cohort, count / it.cohort / tensors[name] if name in tensors else 0.0)
        for name, count in it.personal.items()
    ]
    return sorted(rows, key=lambda row: -row[2])


def _seconds(at: datetime, first: datetime) -> float:
    return (at - first).total_seconds()
