"""The table in the terminal at the end of an emulation."""

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sedge_cloud.status.numbers import duration, listed, measured, percent, size
from sedge_emulate.headline import Headline, headline
from sedge_emulate.result import CentralTest, Result, Spread, StrategyResult
from sedge_protocol.wire.objective import Metric


def print_table(result: Result, console: Console, report: Path) -> None:
    """Print the strategies' figures, the device each serves worst, and where the report lies."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("strategy")
    for column in (
        "before",
        "worst\n10 %",
        "after",
        "worst\n10 %",
        "up",
        "down",
        "of dense,\nboth ways",
        "time",
    ):
        table.add_column(column, justify="right")
    rows = [headline(strategy, result.metric) for strategy in result.strategies]
    for row in rows:
        table.add_row(
            Text(row.name, style="bold"),
            *_measured(row.before, result.metric),
            *_measured(row.after, result.metric),
            *_bytes(row),
            duration(row.seconds),
        )
    _say(console, f"{result.dataset}, {result.devices} devices, {result.split}")
    console.print(table)
    for row in rows:
        _say(console, _worst(row, result.metric))
    for row in rows:
        _say(console, _links(row))
    for strategy in result.strategies if result.link == "memory" else ():
        _say(console, _course(strategy))
    for strategy in result.strategies:
        if strategy.central is not None:
            _say(console, _central(strategy.name, strategy.central, result.metric))
    _say(
        console,
        f"{result.metric.words} before and after local training, over all devices; "
        "bytes of a device and round after its first",
    )
    _say(console, f"report: {report}")


def _measured(found: Spread, metric: Metric) -> tuple[str, str]:
    return measured(found.mean, metric), measured(found.worst_tenth, metric)


def _bytes(row: Headline) -> tuple[str, ...]:
    """Of one round alone nothing is known of a device's later ones."""
    device = row.rates.device
    if not device.both:
        return ("-",) * 3
    return size(device.up), size(device.down), percent(row.of_dense)


def _links(row: Headline) -> str:
    """What newcomers and the coordinator move."""
    new, own = row.rates.newcomer, row.rates.coordinator
    return (
        f"{row.name}: a device's first round {size(new.up)} up, {size(new.down)} down; "
        f"the coordinator {size(own.up)} up, {size(own.down)} down a round"
    )


def _worst(row: Headline, metric: Metric) -> str:
    return (
        f"worst under {row.name}: {row.worst.device}, "
        f"{measured(row.worst.before, metric)} -> {measured(row.worst.after, metric)}"
    )


def _central(name: str, found: CentralTest, metric: Metric) -> str:
    """How the models do on the examples that no device has."""
    before, after = (measured(one.mean, metric) for one in (found.before, found.after))
    one = "" if found.global_model is None else f", global {measured(found.global_model, metric)}"
    return (
        f"{name} on the {found.examples:,} examples for all: devices' models {before} before, "
        f"{after} after{one}"
    )


def _course(strategy: StrategyResult) -> str:
    """How long the rounds took by the virtual clock, and what did not go well."""
    rounds = strategy.rounds
    words = [f"{duration(max((r.closed_s for r in rounds), default=0.0))} of virtual time"]
    late = sum(len(r.late_devices) for r in rounds)
    if late:
        asked = late + sum(r.num_updates for r in rounds)
        words.append(f"{late:,} of {asked:,} updates not in time")
    resent = sum(r.resent_bytes for r in rounds)
    if resent:
        words.append(f"{size(resent)} sent again")
    return f"{strategy.name}: {listed(words)}"


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
