"""Draws docs/gains-*.svg from tools/bench/results/gains.json: one figure for each split.

For every strategy but the first, it plots the pooled gain over the first strategy, in percentage points,
against the examples per device: after training and, in a paler colour, before training. A line connects the
means over the seeds, and a vertical line extends from the worst seed to the best.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import msgspec
from tools.bench.compression_figure import framed
from tools.bench.gains import FLEET, SEEDS, SIZES, SPLITS, Cell, Gains, gains_of

from sedge_cloud.figures.drawing import Axis, Plot, series, ticks
from sedge_cloud.figures.numbers import listed
from sedge_emulate.config import load_emulation

DOCS = Path(__file__).parents[2] / "docs"
WORDS = {"dir-0.1": "Dir(0.1)", "dir-0.5": "Dir(0.5)", "iid": "IID"}


def drawn(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path and the SVG of each figure that has cells."""
    if path.exists():
        cells = msgspec.json.decode(path.read_bytes(), type=Gains).cells
        for split in SPLITS:
            if any(cell.split == split for cell in cells):
                yield DOCS / f"gains-{split}.svg", framed(figure(cells, split))


def lines(path: Path) -> Iterator[str]:
    """Yield the figures in Markdown, and a sentence about the cells that they show."""
    for page, _ in drawn(path):
        split = page.stem.removeprefix("gains-")
        yield f"![Gain over training alone, by examples per device, {WORDS[split]}]({page.name})"
        yield ""
    cells = msgspec.json.decode(path.read_bytes(), type=Gains).cells if path.exists() else []
    count = len(SPLITS) * len(SIZES) * len(SEEDS) * len(load_emulation(FLEET).strategies)
    sizes: dict[tuple[str, int], set[int]] = {}
    for cell in cells:
        sizes.setdefault((cell.split, cell.seed), set()).add(cell.size)
    words = [
        f"{WORDS[split]} with {listed([f'{size:,}' for size in sorted(found)])} examples per device "
        f"(seed {seed})"
        for (split, seed), found in sorted(sizes.items())
    ]
    yield (
        "Pale lines show the gain before training, the other lines the gain after it. So far "
        f"{len(cells)} of {count} cells have run{': ' if words else ''}{'; '.join(words)}."
    )


def figure(cells: list[Cell], split: str) -> Plot:
    """Plot one split. The strategies' names are in the lower right corner."""
    first, *others = dict.fromkeys(cell.strategy for cell in cells)
    found = {
        (name, size): gains
        for name in others
        for size in SIZES
        if (gains := gains_of(cells, split, size, name))
    }
    values = [100 * value for gains in found.values() for pair in gains for value in pair]
    low, high = min([0.0, *values]) - 1, max([0.0, *values]) + 1
    y = Axis(low, high, [(at, f"{at:+g}" if at else "0") for at in ticks(low, high, 7)])
    marks = [(size, f"{size:,}") for size in SIZES]
    x = Axis(SIZES[0] * 0.8, SIZES[-1] * 2.2, marks, "examples per device, logarithmic", log=True)
    plot = Plot(f"{WORDS[split]}: gain on training {first}, in points of accuracy", x, y)
    plot.rule(0, f"as good as {first}")
    for i, name in enumerate(others):
        sizes = [size for size in SIZES if (name, size) in found]
        for place, opacity in ((0, 0.35), (1, 1.0)):
            points = [[100 * pair[place] for pair in found[name, size]] for size in sizes]
            means = [fmean(each) for each in points]
            plot.line(sizes, means, series(i), 2.0, opacity)
            ends = [min(each) for each in points], [max(each) for each in points]
            plot.strokes((sizes, ends[0]), (sizes, ends[1]), series(i), 1.5, opacity)
        # The lines end close together, so names at their ends would overlap.
        plot.text(x.high, low, name, (-6, -8 - 15 * (len(others) - 1 - i)), series(i), "end")
    return plot
