"""Draws docs/compression.svg from tools/bench/results/compression.json.

It compares every coding and split with no compression under the same seed: the difference in accuracy
before training, in percentage points, is plotted against the bytes per device and round, up and down. A dot
is the mean over the seeds, and a line extends from the worst seed to the best. Differences are plotted
because accuracies vary more between seeds than between codings.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from tools.bench.compression import WHOLE

from sedge_cloud.figures.drawing import Axis, Plot, series
from sedge_cloud.figures.numbers import size
from sedge_cloud.figures.pages import environment

PAGE = Path(__file__).parents[2] / "docs" / "compression.svg"
ALLOWED = -0.5
TITLE = "Accuracy before training, in points relative to everything whole"
SVG = """\
{% import "macros.html" as m with context %}
{{ m.svg(plot) }}"""
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" """
STYLE = """\
<style>
{% include "style.css" %}
svg { background: var(--card); }
</style>"""


def drawn(path: Path) -> str:
    """Return the figure as SVG."""
    return framed(plot_of(json.loads(path.read_text())["cells"]))


def framed(plot: Plot) -> str:
    """Return a plot as a standalone SVG file, with its namespace and the pages' style sheet."""
    pages = environment({})
    element = pages.from_string(SVG).render(plot=plot).strip()
    opened, rest = element.removeprefix("<svg ").split(">", 1)
    return f"{HEAD}{opened}>\n{pages.from_string(STYLE).render()}{rest}\n"


def plot_of(cells: list[dict[str, Any]]) -> Plot:
    """Return the plot. Every split has a colour, and every coding's name is above its dots."""
    whole = {(c["alpha"], c["seed"]): c for c in cells if c["setting"] == WHOLE}
    ticks = [(at, f"{at / 1000:.0f} kB") for at in (20e3, 30e3, 40e3, 60e3, 100e3)]
    x = Axis(15e3, 170e3, ticks, "bytes per device and round, up and down, logarithmic", log=True)
    y = Axis(-1.05, 1.05, [(at, f"{at:+g}" if at else "0") for at in (-1, -0.5, 0, 0.5, 1)])
    plot = Plot(TITLE, x, y)
    dense = fmean(c["up"] + c["down"] for c in whole.values())
    plot.rule(0, f"everything whole, {size(dense)}")
    plot.rule(ALLOWED, "half a point less", 14)
    by_bytes = sorted(cells, key=lambda c: float(c["up"] + c["down"]))
    coded = list(dict.fromkeys(c["setting"] for c in by_bytes if c["setting"] != WHOLE))
    for i, alpha in enumerate(sorted({c["alpha"] for c in cells})):
        plot.text(16e3, -0.92 + 0.12 * i, f"Dir({alpha:g})", (0, 0), series(i))
        for setting in coded:
            rows = [c for c in cells if (c["alpha"], c["setting"]) == (alpha, setting)]
            gains = [100 * (c["before"] - whole[alpha, c["seed"]]["before"]) for c in rows]
            at = fmean(c["up"] + c["down"] for c in rows)
            plot.strokes(([at], [min(gains)]), ([at], [max(gains)]), series(i), 1.5, 0.6)
            plot.dots([at], [fmean(gains)], series(i), 8)
            if i == 0:  # names in three rows, because side by side they would overlap
                plot.text(
                    at, 0.9 - 0.14 * (coded.index(setting) % 3), setting, (0, 0), "", "middle"
                )
    return plot
