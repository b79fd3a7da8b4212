"""Writes RESULTS.md, the figures of all benchmarks, from tools/bench/results.

No figure is typed by hand.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tools.bench.gpu_figures import gpu
from tools.bench.harness import BENCHMARKS, PAGE, Figure, Result, benchmark
from tools.bench.scale_figures import coordinator, processes, three_hosts

from sedge_protocol.errors import SedgeError

HEAD = """\
# What was measured

Written by `python -m tools.bench pages` from the results of `make figures`, which runs every command
below except the one for the GPU; each program's docstring says exactly what it measures. Absolute times
hold for one machine at one moment. Both sides of a ratio are measured alternately within one run, so ratios
carry over better. Missed targets are marked.
"""
# Benchmarks that have a command line of their own.
OTHERS: dict[str, tuple[str, Callable[[Result], Iterable[Figure]]]] = {
    "coordinator": ("Coordinator", coordinator),
    "gpu": ("Many devices on one GPU", gpu),
    "three_hosts": ("Coordinators on three hosts, with faults", three_hosts),
    "processes": ("Cost by number of coordinators", processes),
}


@dataclass(frozen=True)
class Section:
    """A benchmark's section in RESULTS.md: its figures, or ``why`` there are none."""

    name: str
    title: str
    figures: list[Figure] = field(default_factory=list[Figure])
    why: str = ""

    @property
    def command(self) -> str:
        """The command that runs this benchmark."""
        return f"`python -m tools.bench {self.name}`"


def page(folder: Path) -> str:
    """Return the text of RESULTS.md."""
    machine, *found = (section(name, folder) for name in ("machine", *PAGE))
    lines = [HEAD, *(f"{f.what}: {f.measured}" for f in machine.figures), ""]
    for each in found:
        if each.figures:
            heads = ["| what | measured | target |", "| --- | --- | --- |"]
            rows = [f"| {f.what} | {f.measured} | {f.judged} |" for f in each.figures]
            lines += [f"## {each.title}", "", each.command, "", *heads, *rows, ""]
    left = [f"- {s.title}: {s.why}; {s.command}" for s in (machine, *found) if s.why]
    lines += ["## Left out", "", *left, ""] if left else []
    return "\n".join(lines).rstrip() + "\n"


def section(name: str, folder: Path) -> Section:
    """Return one benchmark's section."""
    title, figures = OTHERS.get(name) or _described(name)
    path = folder / f"{name}.json"
    if not path.exists():
        return Section(name, title, why="not measured yet")
    try:
        return Section(name, title, list(figures(json.loads(path.read_text()))))
    except (SedgeError, LookupError, TypeError, ValueError):
        return Section(name, title, why=f"{path.name} is not in this command's format")


def _described(name: str) -> tuple[str, Callable[[Result], Iterable[Figure]]]:
    benchmark(name)
    return BENCHMARKS[name].title, BENCHMARKS[name].figures
