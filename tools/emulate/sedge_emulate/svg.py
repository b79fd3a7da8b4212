"""One drawing of the report: matplotlib's axes in, an SVG element for an HTML page out.

matplotlib draws in placeholder colours that become CSS variables, text stays text, and everything that
names an address outside the page goes, so that the page chooses font and colours, in light and dark, and
needs nothing from anywhere. The same drawing gives the same bytes.
"""

import io
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Series of the page's style sheet, --series-1 to --series-6; a seventh strategy starts over.
NUM_SERIES = 6
# Placeholders: colours no one would choose, each replaced by the variable it stands for.
INK, MUTED, LOSS = "#010101", "#020202", "#040404"
_GRID = "#030303"
_SERIES = tuple(f"#0a00{i + 1:02x}" for i in range(NUM_SERIES))
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    LOSS: "--loss",
    _GRID: "--grid",
    **{colour: f"--series-{i + 1}" for i, colour in enumerate(_SERIES)},
}
# One point of the figure is one pixel of a page that is wide enough.
_INCH = 72
WIDTH, HEIGHT = 500, 290
# The keys are a literal type of the newest matplotlib alone.
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "path.simplify": False,
    "font.size": 12,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": _GRID,
    "lines.solid_capstyle": "round",
    "lines.linewidth": 2,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


class Drawing:
    """The SVG element of ``axes``, empty until its block is left."""

    svg = ""


def series(i: int) -> str:
    """The colour of the i-th strategy."""
    return _SERIES[i % NUM_SERIES]


@contextmanager
def axes(name: str, height: float = HEIGHT) -> Generator[tuple[Axes, Drawing]]:
    """Axes to draw on, and the drawing that they are once the block is left.

    ``name`` describes the drawing to those who cannot see it, and tells its parts from other drawings'.
    """
    with matplotlib.rc_context({**_RC, "svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH / _INCH, height / _INCH), layout="constrained")
        drawing = Drawing()
        yield figure.subplots(), drawing
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        drawing.svg = _inline(buffer.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """matplotlib's SVG file as an element of an HTML page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*|<style.*?</style>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg[^>]*(viewBox="[^"]*")[^>]*>',
        rf'<svg \1 role="img" aria-label="{name}">',
        svg,
        count=1,
    )
    # Only clips and markers are referred to; their names are hashes, salted with the panel's.
    svg = re.sub(r' id="(?![mp][0-9a-f]{10}")[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r"font-family: [^;]*; ?", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.strip()
