"""Prints the table at the end of an emulation."""

from collections.abc import Iterator
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sedge_cloud.figures.numbers import change, duration, listed, measured, percent, size
from sedge_emulate.headline import Headline, headline
from sedge_emulate.paired import Difference, against_first
from sedge_emulate.result import CentralTest, Result, Spread, StrategyResult
from sedge_protocol.wire.objective import Metric

_COLUMNS = (
    "before\npooled", "\nmean", "worst\n10 %", "after\npooled", "\nmean", "worst\n10 %", "up", "down",
    "time",
)  # fmt: skip


def print_table(result: Result, console: Console, report: Path) -> None:
    """Print each strategy's figures, its worst device, and the path of the report."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("strategy")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    rows = [headline(strategy, result.metric) for strategy in result.strategies]
    for row in rows:
        table.add_row(
            Text(row.name, style="bold"),
            *_measured(row.before_pooled, row.before, result.metric),
            *_measured(row.after_pooled, row.after, result.metric),
            *_bytes(row),
            duration(row.seconds),
        )
    _say(console, result.split or f"{result.dataset}, {result.devices} devices")
    console.print(table)
    for line in _differences(result):
        _say(console, line)
    for row in rows:
        _say(console, _worst(row, result.metric))
    for row in rows:
        _say(console, _links(row))
    for strategy in result.strategies if result.link == "memory" else ():
        _say(console, _course(strategy))
    for strategy in result.strategies:
        for remark in strategy.remarks:
            _say(console, remark)
    for strategy in result.strategies:
        if strategy.central is not None:
            _say(console, _central(strategy.name, strategy.central, result.metric))
    _say(
        console,
        f"{result.metric.words} before and after local training: pooled over all test examples, mean over "
        f"devices{_tested(result)}; bytes per device and round, after a device's first",
    )
    _say(console, f"report: {report}")


def _measured(pooled: float | None, found: Spread, metric: Metric) -> tuple[str, str, str]:
    whole = "-" if pooled is None else measured(pooled, metric)
    return whole, measured(found.mean, metric), measured(found.worst_tenth, metric)


def _differences(result: Result) -> Iterator[str]:
    """Yield, for each other strategy, a line on how the first one differs from it, device by device."""
    metric = result.metric
    for name, before, after in against_first(result.strategies, metric):
        words = f"before {_difference(before, metric)}; after {_difference(after, metric)}"
        yield f"{result.strategies[0].name} - {name}: {words}"


def _difference(found: Difference, metric: Metric) -> str:
    """Format the pooled difference, then the mean over devices with its standard error."""
    pooled = "" if found.pooled is None else f"{change(found.pooled, metric)} pooled, "
    error = "" if found.error is None else f" ± {change(found.error, metric, sign='')}"
    mean = f"{change(found.tested.mean, metric)}{error} mean"
    return f"{pooled}{mean} (better on {found.tested.better}, worse on {found.tested.worse})"


def _tested(result: Result) -> str:
    """Return a note with the smallest number of test examples on any device, or "" if it is unknown."""
    fewest = min((d.num_test for s in result.strategies for d in s.devices), default=0)
    return f" ({fewest:,} test examples or more each)" if fewest else ""


def _bytes(row: Headline) -> tuple[str, ...]:
    """Format the cells with a device's bytes per later round, or "-" if no device had a later round."""
    device = row.rates.device
    return (size(device.up), size(device.down)) if device.both else ("-", "-")


def _links(row: Headline) -> str:
    """Format a line with the share of a dense exchange, and the newcomers' and coordinator's bytes."""
    new, own = row.rates.newcomer, row.rates.coordinator
    dense = f"{percent(row.of_dense)} of dense both ways; " if row.rates.device.both else ""
    return (
        f"{row.name}: {dense}a device's first round {size(new.up)} up, {size(new.down)} down; "
        f"the coordinator {size(own.up)} up, {size(own.down)} down per round"
    )


def _worst(row: Headline, metric: Metric) -> str:
    return (
        f"worst under {row.name}: {row.worst.device}, "
        f"{measured(row.worst.before, metric)} -> {measured(row.worst.after, metric)}"
    )


def _central(name: str, found: CentralTest, metric: Metric) -> str:
    """Format a line with the models' metrics on the central test set."""
    before, after = (measured(one.mean, metric) for one in (found.before, found.after))
    one = "" if found.global_model is None else f", global {measured(found.global_model, metric)}"
    return (
        f"{name} on the {found.examples:,} central test examples: devices' models {before} before, "
        f"{after} after{one}"
    )


def _course(strategy: StrategyResult) -> str:
    """Format a line with the rounds' virtual time, the late updates and the retransmissions."""
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
