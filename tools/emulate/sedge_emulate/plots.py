"""The report's plots: accuracy by round, every device, bytes, and where the personal parameters sit.

Each is a list of panels, and each panel one SVG element that the page styles (``svg.py``).
"""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from sedge_emulate.charts import (
    Panel,
    accuracy_axis,
    bytes_axis,
    line,
    round_axis,
    strokes,
)
from sedge_emulate.human import percent, size
from sedge_emulate.result import (
    DeviceResult,
    Model,
    Result,
    RoundResult,
    StrategyResult,
    TensorShare,
)
from sedge_emulate.svg import INK, LOSS, MUTED, NUM_SERIES, WIDTH, series
from sedge_emulate.svg import axes as new_axes

_MAX_TENSORS = 12
# Of more devices, a stroke for each would be thinner than a pixel.
MAX_STROKES = 400
_HUNDREDTHS = 100
# An accuracy that leaves no room for a name below it.
_LOW = 0.05


def accuracy_panels(result: Result) -> list[Panel]:
    """Accuracy of each round's devices, before and after local training, one line per strategy."""
    moments: tuple[tuple[str, Callable[[RoundResult], float]], ...] = (
        ("Before local training", lambda r: r.before_mean),
        ("After local training", lambda r: r.after_mean),
    )
    panels: list[Panel] = []
    for title, mean in moments:
        with new_axes(title) as (axes, drawing):
            for i, strategy in enumerate(result.strategies):
                rounds = [r.round for r in strategy.rounds]
                line(axes, i, rounds, [mean(r) for r in strategy.rounds])
            round_axis(axes, result)
            accuracy_axis(axes, [mean(r) for s in result.strategies for r in s.rounds])
        panels.append(Panel(title, drawing.svg))
    return panels


def device_panels(result: Result) -> list[Panel]:
    """Every device of the final evaluation, from before to after, worst first; one panel per strategy.

    Of more than ``MAX_STROKES`` devices, how their accuracies are distributed.
    """
    values = [v for s in result.strategies for d in s.devices for v in (d.before, d.after)]
    panels: list[Panel] = []
    for i, strategy in enumerate(result.strategies):
        with new_axes(f"Devices of strategy {i + 1}") as (axes, drawing):
            _devices(axes, i, strategy)
            # A little lower than the worst: its name stands below its dot.
            accuracy_axis(axes, [max(value - _LOW, 0) for value in values])
        panels.append(Panel(strategy.name, drawing.svg))
    return panels


def traffic_panels(result: Result) -> list[Panel]:
    """Bytes a round costs one device, up and down, against a dense model; logarithmic."""
    panels: list[Panel] = []
    for title, direction in (("Device to cloud", "up"), ("Cloud to device", "down")):
        with new_axes(title) as (axes, drawing):
            lowest = float(max(result.model.dense_bytes, 1))
            for i, strategy in enumerate(result.strategies):
                rounds, each = _bytes_per_device(strategy, direction)
                line(axes, i, rounds, each)
                lowest = min([lowest, *each])
            _dense_line(axes, result.model)
            round_axis(axes, result)
            bytes_axis(axes, lowest, axes.dataLim.y1)
        panels.append(Panel(title, drawing.svg))
    return panels


def personal_panels(result: Result) -> list[Panel]:
    """Which tensors hold the personal parameters, for the strategies that have any."""
    panels: list[Panel] = []
    for i, strategy in enumerate(result.strategies):
        shares = _largest(strategy.personal)
        if not shares:
            continue
        name = f"Personal parameters of strategy {i + 1}"
        with new_axes(name, height=70 + 28 * len(shares)) as (axes, drawing):
            _bars(axes, i, shares)
        total = sum(share.elements for share in shares)
        panels.append(Panel(f"{strategy.name}: {total:,.0f} parameters per device", drawing.svg))
    return panels


def personal_round_panels(result: Result) -> list[Panel]:
    """How many personal parameters a device had in each tensor, by round, stacked; as above."""
    panels: list[Panel] = []
    for i, strategy in enumerate(result.strategies):
        names, layers = _by_round(strategy.rounds)
        if not names:
            continue
        with new_axes(f"Personal parameters of strategy {i + 1}, by round") as (axes, drawing):
            numbers = [r.round for r in strategy.rounds]
            colours = [series(layer) for layer in range(len(names))]
            # A legend leaves out what is named with an underscore first, as tensors may be: these are
            # numbered, and get their names once they stand in it.
            places = map(str, range(len(names)))
            axes.stackplot(numbers, layers, colors=colours, labels=places, step="mid", linewidth=0)
            axes.set_ylim(0, 1.02 * float(layers.sum(axis=0).max()))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
            round_axis(axes, result)
            legend = axes.legend(frameon=False, fontsize=11, loc="upper center",
                                 bbox_to_anchor=(0.5, -0.16), ncols=2)  # fmt: skip
            for text in legend.get_texts():
                text.set_text(names[int(text.get_text())])
        panels.append(Panel(f"{strategy.name}: parameters per device, by round", drawing.svg))
    return panels


def _by_round(rounds: list[RoundResult]) -> tuple[list[str], NDArray[np.float64]]:
    """The tensors with personal parameters, and how many each had in each round (tensors, rounds).

    Of more than there are colours the largest, and the others as one.
    """
    totals: dict[str, float] = {}
    for r in rounds:
        for name, elements in r.personal.items():
            totals[name] = totals.get(name, 0.0) + elements
    shown, rest = list(totals), list[str]()
    if len(shown) > NUM_SERIES:
        rest = sorted(shown, key=lambda name: -totals[name])[NUM_SERIES - 1 :]
        shown = [name for name in shown if name not in rest]
    layers = [[r.personal.get(name, 0.0) for r in rounds] for name in shown]
    if rest:
        shown.append(f"{len(rest)} others")
        layers.append([sum(r.personal.get(name, 0.0) for name in rest) for r in rounds])
    return shown, np.array(layers)


def _devices(axes: Axes, i: int, strategy: StrategyResult) -> None:
    devices = sorted(strategy.devices, key=lambda d: (d.before, d.after, d.device))
    if len(devices) > MAX_STROKES:
        _distribution(axes, i, devices)
    else:
        _each(axes, i, devices)
    if devices:
        _name_worst(axes, devices[0])
    axes.set_xlabel("devices, worst before training first")


def _each(axes: Axes, i: int, devices: list[DeviceResult]) -> None:
    """One stroke for each device."""
    colour = series(i)
    # Wide strokes and dots for 10 devices, fine ones for hundreds.
    step = min(WIDTH / max(len(devices), 1), 14)
    x = np.arange(1.0, len(devices) + 1)
    before = np.array([d.before for d in devices])
    after = np.array([d.after for d in devices])
    for worse, stroke in ((False, colour), (True, LOSS)):
        at = np.flatnonzero((after < before) == worse)
        width = max(step / 4, 0.5)
        strokes(axes, (x[at], before[at]), (x[at], after[at]), stroke, width, alpha=0.45)
    dot = min(max(step * 0.6, 1.5), 7)
    strokes(axes, (x, before), (x, before), MUTED, dot)
    strokes(axes, (x, after), (x, after), colour, dot)
    axes.set_xlim(0.4, len(devices) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _distribution(axes: Axes, i: int, devices: list[DeviceResult]) -> None:
    """The accuracy before as one line; median and quartiles after, of each hundredth of the devices."""
    x = np.linspace(1, len(devices), _HUNDREDTHS)
    before = np.array([d.before for d in devices])
    after = np.array_split(np.array([d.after for d in devices]), _HUNDREDTHS)
    low, median, high = np.array([np.quantile(part, (0.25, 0.5, 0.75)) for part in after]).T
    axes.fill_between(x, low, high, color=series(i), alpha=0.25, linewidth=0)
    axes.plot(x, median, color=series(i))
    axes.plot(x, np.interp(x, np.arange(1, len(devices) + 1), before), color=MUTED)
    axes.set_xlim(1, len(devices))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _name_worst(axes: Axes, worst: DeviceResult) -> None:
    # Below its dot, where nothing else is, unless the axis itself is there.
    is_low = worst.before < _LOW
    axes.annotate(
        f"{worst.device}: {percent(worst.before)} → {percent(worst.after)}",
        (1, worst.before),
        (10, 6 if is_low else -4),
        textcoords="offset points",
        va="bottom" if is_low else "top",
        fontsize=11,
    )


def _bytes_per_device(strategy: StrategyResult, direction: str) -> tuple[list[int], list[float]]:
    """Rounds, and bytes for each device of the round; rounds without an update or a byte left out."""
    rounds: list[int] = []
    each: list[float] = []
    for r in strategy.rounds:
        total = r.bytes_up if direction == "up" else r.bytes_down
        if total and r.num_updates + r.late:
            rounds.append(r.round)
            each.append(total / (r.num_updates + r.late))
    return rounds, each


def _dense_line(axes: Axes, model: Model) -> None:
    axes.axhline(max(model.dense_bytes, 1), color=MUTED, linewidth=1.2, linestyle=(0, (5, 4)))
    axes.annotate(
        f"the whole model, {size(model.dense_bytes)}",
        (1, max(model.dense_bytes, 1)),
        (0, 6),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        color=MUTED,
        fontsize=11,
    )


def _largest(personal: list[TensorShare]) -> list[TensorShare]:
    """The tensors in the model's order; of more than a dozen the largest, and the others as one."""
    if len(personal) <= _MAX_TENSORS:
        return personal
    cut = sorted((share.elements for share in personal), reverse=True)[_MAX_TENSORS - 2]
    kept = [share for share in personal if share.elements >= cut][: _MAX_TENSORS - 1]
    rest = [share for share in personal if share not in kept]
    other = TensorShare(
        f"{len(rest)} others", sum(s.elements for s in rest), sum(s.share for s in rest)
    )
    return [*kept, other]


def _bars(axes: Axes, i: int, shares: list[TensorShare]) -> None:
    rows = range(len(shares))
    axes.barh(rows, [s.share for s in shares], height=0.62, color=series(i))
    for row, share in zip(rows, shares, strict=True):
        label = f"{percent(share.share)}  ({share.elements:,.4g})"
        axes.annotate(
            label, (share.share, row), (6, 0), textcoords="offset points", va="center", fontsize=11
        )
    axes.set_yticks(rows, [s.tensor for s in shares], color=INK)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(NullLocator())
    axes.spines["bottom"].set_visible(False)
    # Room for the longest bar's label.
    axes.set_xlim(0, 1.45 * max(s.share for s in shares) or 1)
