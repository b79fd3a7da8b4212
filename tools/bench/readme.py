"""Writes the tables in README.md and in pages of docs, each between its markers."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.bench import gains_figure
from tools.bench.harness import RESULTS
from tools.bench.methods import mixes, overview

from sedge_cloud.figures.numbers import percent, size
from sedge_emulate.headline import Headline, headline
from sedge_emulate.result import Result, read_json

ROOT = Path(__file__).parents[2]


def tables() -> Iterator[tuple[Path, str, list[str]]]:
    """Yield each table as the path of its page, the name of its markers, and its lines."""
    research, ablations = ROOT / "docs" / "research.md", ROOT / "docs" / "ablations.md"
    yield ROOT / "README.md", "methods", overview()
    yield ablations, "demo", demo(read_json(RESULTS / "demo.json"))
    yield research, "methods", overview()
    yield ablations, "mixes", mixes(RESULTS / "mixes.json")
    yield research, "gains", [*gains_figure.lines(RESULTS / "gains.json")]


def replaced(text: str, name: str, lines: Iterable[str]) -> str:
    """Return the text with the lines between the markers called ``name`` replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin, *lines, end + after])


def demo(result: Result) -> list[str]:
    """Return the demo's description, and a table with a row for each strategy."""
    assert result.machine is not None  # only a real run's result lacks it
    minutes = sum(strategy.seconds for strategy in result.strategies) / 60
    fewest = min(device.num_test for device in result.strategies[0].devices)
    return [
        f"`make demo` trains a model of {result.model.parameters:,} parameters on {result.devices} devices "
        f"for {len(result.strategies[0].rounds)} rounds, in {minutes:.1f} minutes on {result.machine.cpus} "
        "cores. Each cell has the accuracy on the devices' own test examples, pooled over all examples / "
        "as the mean over devices: *before* training (the model as it arrives) and *after* it. The worst "
        f"tenth is the mean over the worst {max(1, result.devices // 10)} devices after training. Every "
        f"device has at least {fewest} test examples. Bytes are per device and round, up and down, headers "
        "included.",
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
