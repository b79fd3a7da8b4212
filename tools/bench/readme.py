"""The tables of README.md and docs/research.md, between their markers; no figure is typed by hand."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from tools.bench import gains_figure
from tools.bench.harness import RESULTS
from tools.bench.methods import methods
from tools.bench.tables import SETS

from sedge_cloud.figures.numbers import percent, size
from sedge_emulate.compare.comparison import Comparison, Figure, Row
from sedge_emulate.headline import Headline, headline
from sedge_emulate.result import Result, read_json

ROOT = Path(__file__).parents[2]
# The columns of the table over several seeds.
ACCURACIES = {
    "before_pooled": "before, pooled",
    "before": "before, mean",
    "before_worst_tenth": "before, worst 10 %",
    "after_pooled": "after, pooled",
    "after": "after, mean",
    "after_worst_tenth": "after, worst 10 %",
}


def tables() -> Iterator[tuple[Path, str, list[str]]]:
    """Each table: its page, the name of its markers there, and its lines."""
    yield ROOT / "README.md", "demo", demo(read_json(RESULTS / "demo.json"))
    found = msgspec.json.decode((RESULTS / "headline.json").read_bytes(), type=Comparison)
    yield ROOT / "docs" / "research.md", "headline", seeds(found)
    for name in SETS:
        yield ROOT / "docs" / "research.md", f"methods-{name}", methods(name)
    gains = [*gains_figure.lines(RESULTS / "gains.json")]
    yield ROOT / "docs" / "research.md", "gains", gains


def replaced(text: str, name: str, lines: Iterable[str]) -> str:
    """The text with the lines between ``name``'s markers replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin, *lines, end + after])


def demo(result: Result) -> list[str]:
    """The table at the top of the README: its words, then six columns."""
    assert result.machine is not None  # which a real run does not know
    minutes = sum(strategy.seconds for strategy in result.strategies) / 60
    fewest = min(device.num_test for device in result.strategies[0].devices)
    return [
        f"`make demo` trains {result.devices} devices, {len(result.strategies[0].rounds)} rounds of "
        f"{result.model.parameters:,} parameters, in {minutes:.1f} minutes on {result.machine.cpus} cores. "
        "Accuracy on each device's own test examples, *before* training (the model as it arrives) and "
        "*after*: pooled over all examples / mean over devices. The worst tenth is the mean over the worst "
        f"{max(1, result.devices // 10)} devices, after. Every device has at least {fewest} test examples. "
        "Bytes are per device and round, up and down, headers included.",
        "",
        "| strategy | before training | after training | worst tenth | bytes | first round |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(headline(strategy)) for strategy in result.strategies),
    ]


def _row(row: Headline) -> str:
    assert row.before_pooled is not None
    assert row.after_pooled is not None
    cells = (
        row.name,
        f"{percent(row.before_pooled)} / {percent(row.before.mean)}",
        f"{percent(row.after_pooled)} / {percent(row.after.mean)}",
        percent(row.after.worst_tenth),
        size(row.rates.device.both),
        size(row.rates.newcomer.both),
    )
    return f"| {' | '.join(cells)} |"


def seeds(found: Comparison) -> list[str]:
    """Fashion-MNIST over several seeds, and the first strategy minus each other one."""
    numbers = ", ".join(map(str, found.strategies[0].seeds))
    heads = ("strategy", *ACCURACIES.values(), "up and down")
    lines = [
        f"{found.split}, seeds {numbers}: mean ± sample standard deviation, in per cent. "
        "`python -m tools.bench headline`",
        "",
        f"| {' | '.join(heads)} |",
        f"| {' | '.join(['---'] * len(heads))} |",
    ]
    for row in found.strategies:
        moved = row.figures["bytes_up"].mean + row.figures["bytes_down"].mean
        cells = (row.name, *_shares(row.figures, ACCURACIES), size(moved))
        lines.append(f"| {' | '.join(cells)} |")
    keys = [key for key in ACCURACIES if key in found.differences[0].figures]
    heads = (f"{found.strategies[0].name} minus", *(ACCURACIES[key] for key in keys))
    lines += ["", f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    lines += [_difference(row, keys, f"{found.strategies[0].name} - ") for row in found.differences]
    return lines


def _difference(row: Row, keys: Iterable[str], prefix: str) -> str:
    cells = (row.name.removeprefix(prefix), *_shares(row.figures, keys, "+"))
    return f"| {' | '.join(cells)} |"


def _shares(figures: Mapping[str, Figure], keys: Iterable[str], sign: str = "") -> list[str]:
    return [
        f"{100 * figures[key].mean:{sign}.1f} ± {100 * (figures[key].std or 0.0):.1f}"
        for key in keys
    ]
