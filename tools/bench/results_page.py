"""Writes RESULTS.md, the page of all measurements, from tools/bench/results.

    python -m tools.bench.results_page

``make figures`` updates the results and then this page; no figure in it is typed by hand.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.bench.figure import Figure
from tools.bench.figures import RESULTS, Section, sections

PAGE = Path(__file__).parent / "RESULTS.md"
HEAD = """\
# What was measured

Written by `tools/bench/results_page.py` from the results of `make figures`, which runs every command
below but `make bench-gpu`; each program's docstring says what exactly it times. Absolute times are one
machine's at one moment; ratios are taken in turn, within one run, and travel better. A target that is
missed is named as such.
"""


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(page(RESULTS))


def page(folder: Path) -> str:
    """The whole page."""
    lines = [HEAD, machine(folder / "machine.json"), ""]
    found = sections(folder)
    for section in found:
        lines += written(section)
    lines += missing(found)
    return "\n".join(lines).rstrip() + "\n"


def machine(path: Path) -> str:
    """The machine in one paragraph."""
    if not path.exists():
        return "Machine: not recorded (`tools/bench/machine.py`)."
    m: dict[str, Any] = json.loads(path.read_text())
    versions = ", ".join(f"{name} {number}" for name, number in m["versions"].items())
    return (
        f"Machine: {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['platform']}, "
        f"Python {m['python']}; {versions}."
    )


def written(section: Section) -> list[str]:
    """A section with its table; empty when nothing was measured."""
    if not section.figures:
        return []
    heads = ["| what | measured | target |", "| --- | --- | --- |"]
    rows = [f"| {f.what} | {f.measured} | {judged(f)} |" for f in section.figures]
    return [f"## {section.title}", "", f"`{section.command}`", "", *heads, *rows, ""]


def judged(figure: Figure) -> str:
    """The targets, each with whether it is met."""
    return "; ".join(f"{target}: {'met' if met else '**missed**'}" for target, met in figure.met)


def missing(found: Iterable[Section]) -> list[str]:
    """The missing sections, each with the command that measures it."""
    left = [f"- {s.title}: {s.why}; `{s.command}`" for s in found if s.why]
    return ["## Left out", "", *left, ""] if left else []


if __name__ == "__main__":
    main()
