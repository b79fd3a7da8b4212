"""``sedge-cloud run show``: prints a run's rounds, as JSON or as text with the fleet's problems."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from sedge_cloud.admin.models import find_run
from sedge_cloud.facts.reader import Reader
from sedge_cloud.facts.records import RoundFacts, RunFacts
from sedge_cloud.figures.numbers import percent
from sedge_cloud.outlets.tables import table
from sedge_cloud.outlets.terminal import problem_lines, run_lines
from sedge_cloud.privacy import spent_line
from sedge_cloud.rounds.lifecycle import RUNNING
from sedge_cloud.runs.run import Run
from sedge_cloud.store.database import Store
from sedge_cloud.store.records import Summary
from sedge_cloud.store.rows import TrafficRow
from sedge_protocol.errors import ConfigError, StrategyError

HEAD = (
    "round", "task", "updates", "before", "after", "loss", "up", "down", "dense", "sent", "received", "",
)  # fmt: skip
# The coordinator's byte counts. On a narrow terminal this column and all after it are dropped.
LAST = HEAD.index("sent")
NOTE = (
    "up and down: bytes per device; dense: their sum as a share of the float32 model sent both ways",
    "sent and received: the coordinator's bytes",
)

# The measurements that are not reported for a private run.
MEASURED = {"before", "after", "train_loss", "num_examples"}
# How many declines are printed per round; --json prints all.
MOST_DECLINES = 5


def run_report(reader: Reader, name: str, as_json: bool, width: int | None = None) -> Iterator[str]:
    """Yield the lines of the report for a terminal of ``width`` columns.

    Raises ``ConfigError`` for an unknown run.
    """
    store, facts = reader.store, reader.read()
    run = facts.run(name)
    if run is None:
        raise ConfigError("run", name, "the name of a run (see `run list`)")
    dense, lines = _dense(store, name), [_Line(HEAD)]
    closed = {known.round: known for known in run.rounds}
    for row in store.rounds(name):
        known = closed.get(row.round)
        summary = row.summary and msgspec.msgpack.decode(row.summary, type=Summary)
        if summary and known and as_json:
            yield json.dumps(_fields(store, summary, known))
        elif summary and known:
            lines += _closed(store, run, known, summary, dense)
        elif not row.open and not as_json:
            asked = len(store.orders(name, row.round))
            lines.append(_Line((str(row.round), row.task, f"0/{asked}"), "newcomers"))
    if not as_json:
        yield from _table(lines, width)
        yield from run_remarks(store, run)
        yield from _privacy(store, name)
        yield from run_lines(run, facts.at)
        if counters := facts.coordinator.counters:
            counted = ", ".join(f"{event} {count}" for event, count in sorted(counters.items()))
            yield f"since its start, the coordinator has counted: {counted}"
        problems = [it for it in facts.problems if it.run in ("", run.run)]
        if problems:
            yield "what is wrong:"
        yield from problem_lines(problems, facts.at)
        return
    if run.open is not None:
        yield json.dumps(msgspec.to_builtins(run.open))
    if run.privacy is not None or run.rollout is not None:
        fields = {key: getattr(run, key) for key in ("run", "status", "privacy", "rollout")}
        yield json.dumps(msgspec.to_builtins(fields))


def run_remarks(store: Store, run: RunFacts) -> tuple[str, ...]:
    """Return the strategy's remarks on its options and its run; an empty tuple if it cannot be imported."""
    rows = [row.summary for row in store.rounds(run.run) if row.summary is not None]
    summaries = [msgspec.msgpack.decode(row, type=Summary) for row in rows]
    trained = [summary for summary in summaries if summary.devices]
    personal = sum(sum(summary.personal.values()) for summary in trained)
    try:
        stored = Run(find_run(store, run.run), store)
        return stored.remarks(None if run.status == RUNNING or not trained else personal)
    except (ConfigError, StrategyError):
        return ()


def _fields(store: Store, s: Summary, known: RoundFacts) -> dict[str, object]:
    """Return a round's summary as JSON fields, with its times, traffic, declines and rejections."""
    orders = store.orders(s.run, s.round)
    told = msgspec.to_builtins(s)
    for fields in (told, *told["devices"]) if s.withheld else ():
        for key in MEASURED & fields.keys():
            del fields[key]
    return {
        **told,
        **{key: msgspec.to_builtins(getattr(known, key)) for key in ("state", "opened", "closed")},
        "traffic": {
            t.device: {"up": t.up, "down": t.down, "whole_model": bool(t.whole)}
            for t in store.traffic(s.run, s.round)
        },
        "link": {"up": known.link_up, "down": known.link_down},
        "http": known.http,
        "newcomers": known.newcomers,
        "declines": {order.device: order.declined for order in orders if order.declined},
        "rejects": {
            u.device: f"{u.rejected}: {u.detail}"
            for u in store.received(s.run, s.round).receipts
            if u.rejected
        },
    }


def _privacy(store: Store, name: str) -> Iterator[str]:
    """Yield a line on how much privacy budget a run has spent, or nothing if it has none."""
    run = Run(find_run(store, name), store)
    if run.config.privacy is not None and run.state.budget is not None:
        yield spent_line(run.config.privacy, run.config.fraction_train, run.state.budget)


def _dense(store: Store, name: str) -> int:
    """Return how many bytes it takes to download and upload a run's model once in float32."""
    return 8 * Run(find_run(store, name), store).manifest.layout.size


@dataclass
class _Line:
    """A row of the table: its cells, the text at its end, and the lines printed below it."""

    cells: Sequence[str]
    text: str = ""
    below: list[str] = field(default_factory=list[str])


def _table(lines: Sequence[_Line], width: int | None) -> Iterator[str]:
    """Yield the table with the lines below each row. The last columns are omitted if they do not fit."""
    count = len(HEAD) - 1
    rows = [(*it.cells[:count], *[""] * (count - len(it.cells)), it.text) for it in lines]
    right = set(range(count)) - {1}
    whole, wide = list(table(rows, right)), True
    if width is not None and max(map(len, whole)) > width:
        whole, wide = list(table([(*row[:LAST], "") for row in rows], right)), False
    for text, it in zip(whole, lines, strict=True):
        yield text
        yield from it.below
    if lines[1:]:
        yield from NOTE if wide else NOTE[:1]


def _closed(
    store: Store, run: RunFacts, known: RoundFacts, s: Summary, dense: int
) -> Iterator[_Line]:
    """Yield the lines for a closed round; ``dense`` is the result of ``_dense``."""
    traffic = store.traffic(s.run, s.round)
    others = [row for row in traffic if row.device not in known.newcomers]
    link = str(known.link_up), str(known.link_down)
    counts = str(s.round), s.task, f"{len(s.devices)}/{s.cohort}"
    line = _Line((*counts, *_figures(s), *_means(others, dense), *link))
    came = [row for row in traffic if row.device in known.newcomers]
    below = list(_below(store, run, known, s))
    if not came:
        line.below = below
        yield line
        return
    yield line
    yield _Line(("", "new", str(len(came)), "", "", "", *_means(came, dense)), below=below)


def _below(store: Store, run: RunFacts, known: RoundFacts, s: Summary) -> Iterator[str]:
    """Yield lines about anything unusual in a round."""
    if known.http:
        yield f"      also fetched over HTTP, as reported by the devices: {known.http} bytes"
    if s.failure:
        yield f"      {run.status}: {s.failure}"
    if s.replaced:
        yield "      the strategy replaces the model, so every element of the next one is sent"
    for text in s.remarks:
        yield f"      {text}"
    for device, factor in s.distrusted.items():
        yield f"      {device}: unlike the others, weighted by {factor:.3g}"
    if known.whole:
        yield f"      fetched the whole model instead of changes: {len(known.whole)}"
    if known.late:
        yield f"      updates for earlier rounds: {', '.join(known.late)}"
    declined = {o.device: o.declined for o in store.orders(s.run, s.round) if o.declined}
    yield from _reasons("declined", (why.partition(":")[0] for why in declined.values()))
    for device, why in islice(declined.items(), MOST_DECLINES):
        yield f"        {device}: {why}"
    receipts = store.received(s.run, s.round).receipts
    yield from _reasons("rejected", (row.rejected for row in receipts if row.rejected))


def _figures(s: Summary) -> tuple[str, ...]:
    """Format accuracy before and after training, and the loss; ``-`` if unknown or withheld."""
    values = (s.before, s.after, s.train_loss)
    told = s.devices and not s.withheld
    return tuple(f"{value:.4f}" if told else "-" for value in values)


def _means(rows: Sequence[TrafficRow], dense: int) -> tuple[str, str, str]:
    """Format the mean bytes per device, up and down, and their sum as a share of ``dense``."""
    if not rows:
        return "-", "-", "-"
    up, down = (sum(way) / len(rows) for way in zip(*((r.up, r.down) for r in rows), strict=True))
    return f"{up:.0f}", f"{down:.0f}", percent((up + down) / dense, 2)


def _reasons(what: str, reasons: Iterable[str]) -> Iterator[str]:
    counts = Counter(reasons)
    if counts:
        yield f"      {what}: {', '.join(f'{r} {count}' for r, count in sorted(counts.items()))}"
