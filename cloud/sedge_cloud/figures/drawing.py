"""Draws data as SVG paths, in pixels; ``templates/macros.html`` writes the elements.

Colours are names of classes in ``templates/style.css``, so that the page has one palette, in light and dark
mode.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sedge_cloud.figures.numbers import percent, size
from sedge_protocol.wire.objective import ACCURACY, Metric

Floats: TypeAlias = NDArray[np.float64]

# The style sheet defines the colours s1 to s6; a seventh strategy is drawn in s1 again.
NUM_SERIES = 6
GREY, RED = "grey", "red"
WIDTH, HEIGHT = 500.0, 280.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 24.0, 12.0, 42.0
_TIME_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def series(i: int) -> str:
    """Return the colour of the i-th strategy."""
    return f"s{i % NUM_SERIES + 1}"


@dataclass(frozen=True)
class Axis:
    """The range of one axis, and its ticks as positions with labels."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    label: str = ""
    log: bool = False

    def share(self, values: ArrayLike) -> Floats:
        """Map values to positions on the axis: 0 at its low end and 1 at its high end."""
        ends = np.array([self.low, self.high])
        at = np.asarray(values, float)
        if self.log:
            ends, at = np.log(ends), np.log(np.maximum(at, 1e-9))
        return np.asarray((at - ends[0]) / (ends[1] - ends[0]))


@dataclass(frozen=True)
class Path:
    """A path in a colour class: a line, or a filled area if ``width`` is 0."""

    d: str
    colour: str
    width: float = 0.0
    opacity: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Label:
    """Text at a position in pixels; ``anchor`` is SVG's text-anchor."""

    x: float
    y: float
    text: str
    colour: str
    anchor: str


@dataclass
class Plot:
    """One plot.

    Its methods take data in the units of its axes; ``keys`` label the colours in the legend below.
    """

    title: str
    x: Axis
    y: Axis
    height: float = HEIGHT
    paths: list[Path] = field(default_factory=list[Path])
    labels: list[Label] = field(default_factory=list[Label])
    keys: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def px(self, x: ArrayLike) -> Floats:
        """Convert x values to pixels from the left."""
        return LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT)

    def py(self, y: ArrayLike) -> Floats:
        """Convert y values to pixels from the top."""
        return self.height - BOTTOM - self.y.share(y) * (self.height - BOTTOM - TOP)

    def line(
        self,
        x: ArrayLike,
        y: ArrayLike,
        colour: str,
        width: float = 2.0,
        opacity: float = 1.0,
        dashed: bool = False,
    ) -> None:
        """Add a line through these points."""
        points = self._points(x, y)
        if points:
            self.paths.append(Path(f"M{' '.join(points)}", colour, width, opacity, dashed))

    def dots(self, x: ArrayLike, y: ArrayLike, colour: str, width: float) -> None:
        """Add a dot at each of these points."""
        self.strokes((x, y), (x, y), colour, width)

    def strokes(
        self,
        begins: tuple[ArrayLike, ArrayLike],
        ends: tuple[ArrayLike, ArrayLike],
        colour: str,
        width: float,
        opacity: float = 1.0,
    ) -> None:
        """Add many strokes as one path, so that 1,000 of them take only a few kilobytes."""
        pairs = zip(self._points(*begins), self._points(*ends), strict=True)
        d = "".join(f"M{begin}h0" if begin == end else f"M{begin} {end}" for begin, end in pairs)
        if d:
            self.paths.append(Path(d, colour, width, opacity))

    def area(
        self, x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str, opacity: float
    ) -> None:
        """Fill the area between two lines."""
        points = self._points(x, high) + self._points(x, low)[::-1]
        self.paths.append(Path(f"M{' '.join(points)}z", colour, opacity=opacity))

    def rule(self, y: float, text: str, shift: float = -6.0) -> None:
        """Add a dashed horizontal line at ``y``, with a label ``shift`` pixels below it."""
        at = float(self.py(y))
        self.paths.append(
            Path(f"M{pixels(LEFT)} {pixels(at)}H{pixels(WIDTH - RIGHT)}", GREY, 1.2, dashed=True)
        )
        self.labels.append(Label(WIDTH - RIGHT, at + shift, text, GREY, "end"))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        shift: tuple[float, float],
        colour: str = "",
        anchor: str = "start",
    ) -> None:
        """Add text next to a point, ``shift`` pixels away from it."""
        at = float(self.px(x)) + shift[0], float(self.py(y)) + shift[1]
        self.labels.append(Label(*at, text, colour, anchor))

    def _points(self, x: ArrayLike, y: ArrayLike) -> list[str]:
        pairs = zip(self.px(x).tolist(), self.py(y).tolist(), strict=True)
        return [f"{pixels(one)} {pixels(other)}" for one, other in pairs]


def pixels(value: float) -> str:
    """Format a coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def ticks(
    low: float, high: float, most: int, steps: Sequence[float] = (1, 2, 2.5, 5)
) -> list[float]:
    """Return about ``most`` evenly spaced round numbers from ``low`` to ``high``.

    The spacing is one of ``steps`` times a power of ten.
    """
    rough = max(high - low, 1e-9) / most
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(s * decade for s in (*steps, 10) if s * decade >= rough * 0.999)
    return [
        k * step for k in range(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1)
    ]


def metric_axis(values: Sequence[float], metric: Metric = ACCURACY) -> Axis:
    """Return an axis that fits the values of a metric.

    For a share, the axis runs from a multiple of 0.1 to 1, so that small differences near the top remain
    visible. For any other metric it runs from the lowest value to the highest, with a small margin.
    """
    if not metric.share:
        low, high = min(values, default=0.0), max(values, default=1.0)
        margin = 0.05 * (high - low) or 0.5
        low, high = low - margin, high + margin
        return Axis(low, high, [(at, f"{at:.4g}") for at in ticks(low, high, 6)])
    low = min(math.floor(10 * min(values, default=0)) / 10, 0.9)
    return Axis(low - 0.005, 1.005, [(at, percent(at, 0)) for at in ticks(low, 1, 6)])


def count_axis(low: float, high: float, label: str = "", margin: float = 0.0) -> Axis:
    """Return an axis of whole numbers."""
    marks = [(at, f"{at:,.0f}") for at in ticks(low, high, 8, (1, 2, 5)) if at == int(at)]
    return Axis(low - margin, max(high, low + 1e-3) + margin, marks, label)


def round_axis(rounds: Sequence[int]) -> Axis:
    """Return an axis that covers the rounds of all strategies."""
    numbers = rounds or [1]
    margin = max(0.5, 0.02 * len(set(numbers)))
    return count_axis(min(numbers), max(numbers), "round", margin)


def time_axis(longest_s: float) -> Axis:
    """Return a time axis that starts at 0, in a unit that gives small numbers."""
    unit_s, name = next((u for u in _TIME_UNITS if longest_s >= 2 * u[0]), _TIME_UNITS[-1])
    high = 1.03 * max(longest_s, 1e-3)
    marks = [(at * unit_s, f"{at:g}") for at in ticks(0, high / unit_s, 8, (1, 2, 5))]
    return Axis(0, high, marks, name)


def bytes_axis(low: float, high: float, label: str = "") -> Axis:
    """Return a logarithmic axis of sizes that covers at least two powers of ten."""
    bottom = math.floor(math.log10(max(low, 1)))
    top = max(math.ceil(math.log10(max(high, 1) * 1.3)), bottom + 1)
    decades = [10.0**exponent for exponent in range(bottom, top + 1)]
    marks = [(at, re.sub(r"\.0+ ", " ", size(at))) for at in decades]
    return Axis(decades[0], decades[-1], marks, label, log=True)
