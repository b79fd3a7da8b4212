"""``sedge-cloud run show``: a run's rounds as lines of text, or as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from sedge_cloud.devices.registry import unable_devices, waiting_devices
from sedge_cloud.rounds.lifecycle import RUNNING
from sedge_cloud.rounds.plans import newcomer_features
from sedge_cloud.rounds.summary import Summary
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import RoundRow, RunRow, TrafficRow
from sedge_cloud.store.runs import Run, RunStore
from sedge_protocol.errors import ConfigError, StrategyError

HEAD = (
    f"{'round':>5} {'task':<9} {'updates':>9} {'before':>8} {'after':>8} {'loss':>8} "
    f"{'up':>9} {'down':>9}  bytes of a device"
)


def run_report(store: Store, name: str, as_json: bool) -> Iterator[str]:
    """The lines. Raises ``ConfigError`` when there is no such run."""
    run = next((row for row in store.runs() if row.run == name), None)
    if run is None:
        raise ConfigError("run", name, "the name of a run (see `run list`)")
    if not as_json:
        yield HEAD
    for row in store.rounds(name):
        summary = row.summary and msgspec.msgpack.decode(row.summary, type=Summary)
        if summary and as_json:
            yield json.dumps(_fields(store, summary))
        elif summary:
            yield from _closed(store, run, summary)
        elif not as_json:
            yield from _open(store, run, row)
    if not as_json and run.status == RUNNING:
        yield from _unable(store, run)


def _fields(store: Store, s: Summary) -> dict[str, object]:
    """A round's summary, with every device's bytes and reasons."""
    orders = store.orders(s.run, s.round)
    return {
        **msgspec.to_builtins(s),
        "traffic": {
            t.device: {"up": t.up, "down": t.down, "whole_model": bool(t.whole)}
            for t in store.traffic(s.run, s.round)
        },
        "newcomers": sorted(store.newcomers(s.run, s.round)),
        "declines": {order.device: order.declined for order in orders if order.declined},
        "rejects": {u.device: f"{u.rejected}: {u.detail}" for u in store.rejected(s.run, s.round)},
    }


def _closed(store: Store, run: RunRow, s: Summary) -> Iterator[str]:
    """A round's line, and what is out of the ordinary."""
    new = store.newcomers(s.run, s.round)
    traffic = store.traffic(s.run, s.round)
    others = [row for row in traffic if row.device not in new]
    yield (
        f"{s.round:>5} {s.task:<9} {len(s.devices):>4}/{s.cohort:<4} {s.before:>8.4f} {s.after:>8.4f} "
        f"{s.train_loss:>8.4f} {_means(others)}"
    )
    came = [row for row in traffic if row.device in new]
    if came:
        yield f"{f'{len(came)} in their first round':>52} {_means(came)}"
    if s.failure:
        yield f"      {run.status}: {s.failure}"
    if s.whole:
        yield "      the next model travels whole: the strategy replaces it"
    for device, factor in s.distrusted.items():
        yield f"      {device}: unlike the others, counts {factor:.3g} times"
    whole = sum(bool(row.whole) for row in others)
    if whole:
        yield f"      fetched the whole model in the place of changes: {whole}"
    declined = (order.declined.partition(":")[0] for order in store.orders(s.run, s.round))
    yield from _reasons("declined", filter(None, declined))
    yield from _reasons("rejected", (row.rejected for row in store.rejected(s.run, s.round)))


def _means(rows: Sequence[TrafficRow]) -> str:
    """Mean bytes of these devices, up and down."""
    if not rows:
        return f"{'-':>9} {'-':>9}"
    up, down = (sum(way) / len(rows) for way in zip(*((r.up, r.down) for r in rows), strict=True))
    return f"{up:>9.0f} {down:>9.0f}"


def _reasons(what: str, reasons: Iterable[str]) -> Iterator[str]:
    counts = Counter(reasons)
    if counts:
        yield f"      {what}: {', '.join(f'{r} {count}' for r, count in sorted(counts.items()))}"


def _open(store: Store, run: RunRow, row: RoundRow) -> Iterator[str]:
    """A round that has not closed, and who waits before beginning its order, and why."""
    asked, received = store.orders(row.run, row.round), store.updates(row.run, row.round)
    state = "open" if run.status == RUNNING else run.status
    yield f"{row.round:>5} {row.task:<9} {len(received):>4}/{len(asked):<4} {state}"
    owing = {order.device for order in asked if not order.declined}
    owing.difference_update(update.device for update in received)
    for device, why in waiting_devices(store.devices()).items():
        if device in owing and run.status == RUNNING:
            yield f"      {device} waits: {why}"


def _unable(store: Store, row: RunRow) -> Iterator[str]:
    """The devices that the run has no work for."""
    run = Run(row, store)
    try:
        features = newcomer_features(run, RunStore(store))
    except StrategyError as exc:
        features = frozenset[str]()
        yield f"its strategy cannot plan: {exc}"
    for device, what in unable_devices(store.devices(), run, features).items():
        yield f"no work for {device}: it lacks {', '.join(what)}"
