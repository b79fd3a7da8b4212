"""Writes the README's tables from the results, so that no figure is typed by hand.

    python -m tools.bench.readme

Reads tools/bench/results/*.json (``make figures`` updates them) and replaces the text between the markers.
"""

from collections.abc import Iterable
from pathlib import Path

from tools.bench.figures import RESULTS, sections

from sedge_emulate.human import percent
from sedge_emulate.result import Result, headline, read_json

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Rewrite the tables of README.md."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    text = replaced(text, "demo", demo(read_json(RESULTS / "demo.json")))
    text = replaced(text, "bench", bench())
    readme.write_text(text)


def replaced(text: str, name: str, lines: Iterable[str]) -> str:
    """The text with the lines between ``name``'s markers replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin, *lines, end + after])


def demo(result: Result) -> list[str]:
    """The table at the top."""
    minutes = sum(strategy.seconds for strategy in result.strategies) / 60
    rows = [
        f"`make demo`: {result.split}, {result.model.parameters:,} parameters, "
        f"{len(result.strategies[0].rounds)} rounds, {result.machine.cpus} cores, {minutes:.1f} minutes:",
        "",
        "| strategy | before training | worst 10 % | after training | worst 10 % | up, of dense |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for strategy in result.strategies:
        h = headline(strategy)
        rows.append(
            f"| {h.name} | **{percent(h.before.mean)}** | {percent(h.before.worst_tenth)} "
            f"| {percent(h.after.mean)} | {percent(h.after.worst_tenth)} | {h.up_of_dense:.1%} |"
        )
    return rows


def bench() -> list[str]:
    """The table of measurements: the main figure of each benchmark; the rest is in RESULTS.md."""
    rows = ["| what | measured | command |", "| --- | --- | --- |"]
    for section in sections(RESULTS):
        rows += [
            f"| {figure.what} | {figure.measured} | `{section.command}` |"
            for figure in section.figures
            if figure.short
        ]
    return [*rows, "", "All figures, with targets, are in [RESULTS.md](tools/bench/RESULTS.md)."]


if __name__ == "__main__":
    main()
