"""The report as one HTML file, without scripts or links to other files.

``templates/report.html`` lays out a ``Result``; this module prepares what a template cannot compute easily.
The templates' environment escapes all text. The page stays small even for a large fleet.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader

from sedge_cloud.figures import pages
from sedge_cloud.figures.numbers import change
from sedge_cloud.figures.pages import percent_text
from sedge_emulate.headline import headline
from sedge_emulate.paired import against_first
from sedge_emulate.report import plots
from sedge_emulate.result import DeviceResult, Result, StrategyResult, classes_of, write_whole
from sedge_emulate.settings import flat
from sedge_protocol.wire.objective import Metric

# For larger fleets the page lists only the worst and best devices; result.json has all of them.
MAX_ROWS, ENDS = 200, 20


def write_report(result: Result, path: Path) -> None:
    """Write the report as one self-contained HTML file. Raises ``StorageError``."""
    write_whole(page(result).encode(), path)


def page(result: Result) -> str:
    """Render the HTML page."""
    strategies = result.strategies
    rows = [headline(strategy, result.metric) for strategy in strategies]
    by_name = [{device.device: device for device in s.devices} for s in strategies]
    names = sorted(set().union(*by_name))
    worst = [row.worst.device for row in rows]
    shown = names if len(names) <= MAX_ROWS else _ends(names, by_name, worst, result.metric)
    late = [Counter(name for r in s.rounds for name in r.late_devices) for s in strategies]
    total = sum(late, Counter[str]())
    latest = sorted(total, key=lambda name: (-total[name], name))[:ENDS]
    return environment().get_template("report.html").render(
        title=f"{f'fleet {result.fleet}' if result.fleet else result.dataset} on {result.devices} devices",
        result=result,
        metric=result.metric,
        rows=rows,
        pairs=list(against_first(strategies, result.metric)),
        fewest=min((device.num_test for s in strategies for device in s.devices), default=0),
        plain=next((row for row in rows if _is_fedavg(row.name)), None),
        end_s=max((r.closed_s for s in strategies for r in s.rounds), default=0.0),
        devices=[(name, [found.get(name) for found in by_name]) for name in shown],
        num_devices=len(names),
        troubled=any(map(_went_wrong, strategies)),
        late=[(n, [c[n] for c in late], [found.get(n) for found in by_name]) for n in latest],
        num_late=len(total),
        counted=any(s.bytes.payload_up or s.bytes.payload_down for s in strategies),
    )  # fmt: skip


def _part_of(part: float, whole: float) -> str:
    """Return a part as a percentage, or "" if ``whole`` is 0."""
    return percent_text(part / whole) if whole else ""


def _heads_of(names: Sequence[str], heads: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """Pair each name with the same column heads, for a table with grouped columns."""
    return [(name, heads) for name in names]


@cache
def environment() -> Environment:
    """Return the template environment, with the filters that format numbers."""
    names = {
        "ENDS": ENDS, "MAX_ROWS": MAX_ROWS, "plots": plots, "classes_of": classes_of,
        "heads_of": _heads_of, "flat": flat,
    }  # fmt: skip
    return pages.environment(
        names,
        {"of": _part_of, "change": change},
        PackageLoader("sedge_emulate", "report/templates"),
    )


def _ends(
    names: list[str],
    by_name: Sequence[dict[str, DeviceResult]],
    worst: Sequence[str],
    metric: Metric,
) -> list[str]:
    """Choose which devices the table for a large fleet shows, and sort them, worst first.

    The table shows the devices with the worst and the best metric before training, averaged over the
    strategies, and each strategy's worst device.
    """

    def served(name: str) -> float:
        found = [devices[name].before for devices in by_name if name in devices]
        return -metric.badness(sum(found) / len(found))

    ordered = sorted(names, key=lambda name: (served(name), name))
    kept = {*ordered[:ENDS], *ordered[-ENDS:], *worst}
    return [name for name in ordered if name in kept]


def _went_wrong(strategy: StrategyResult) -> bool:
    rounds = any(r.late or r.late_devices or r.resent_bytes for r in strategy.rounds)
    return rounds or any(kind.reboots or kind.cuts for kind in classes_of(strategy))


def _is_fedavg(name: str) -> bool:
    return name.lower().replace("-", "").replace("_", "").startswith("fedavg")
