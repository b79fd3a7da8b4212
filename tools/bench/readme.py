"""Writes the README's tables from the results, so that no figure is typed by hand.

    python -m tools.bench.readme

Reads tools/bench/results/*.json (``make figures`` updates them) and replaces the text between the markers.
"""

from collections.abc import Iterable
from pathlib import Path

from tools.bench.figures import RESULTS, sections

from sedge_cloud.status.numbers import percent, size
from sedge_emulate.headline import headline
from sedge_emulate.result import Result, read_json

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
    assert result.machine is not None  # which a real run does not know
    minutes = sum(strategy.seconds for strategy in result.strategies) / 60
    rows = [
        f"`make demo`: {result.split}, {result.model.parameters:,} parameters, "
        f"{len(result.strategies[0].rounds)} rounds, {result.machine.cpus} cores, {minutes:.1f} minutes:",
        "",
        "| strategy | before training | worst 10 % | after training | worst 10 % "
        "| both ways per device and round | of dense both ways | up | down | first round of a device "
        "| coordinator, a round |",
        f"| {' | '.join(['---'] * 11)} |",
    ]
    for strategy in result.strategies:
        h = headline(strategy)
        device, first, own = h.rates.device, h.rates.newcomer, h.rates.coordinator
        cells = (
            h.name, f"**{percent(h.before.mean)}**", percent(h.before.worst_tenth),
            percent(h.after.mean), percent(h.after.worst_tenth),
            f"**{size(device.both)}**", percent(h.of_dense), size(device.up), size(device.down),
            f"{size(first.up)} up, {size(first.down)} down", f"{size(own.up)} up, {size(own.down)} down",
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    dense = 2 * result.strategies[0].bytes.dense_update
    return [
        *rows,
        "",
        "Bytes are all that a device's connection carries, headers included, in a round after its first; "
        "the first brings the bundle and the whole model. Dense is the model as float32, "
        f"{size(dense)} both ways. What the coordinator sends to all leaves it once, and every device "
        "receives it.",
    ]


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
