"""``sedge-emulate report``: shows real runs, read from their coordinator's store, in an emulation's report.

Several runs are shown side by side, like an emulation's strategies. The store is only read, so the service
may be running at the same time. The report leaves out what the coordinator does not know: data splits,
devices' labels, MQTT's overhead, and retransmissions. Figures of rounds remain even if ``[keep]`` has
deleted the rounds' updates.
"""

import argparse
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from sedge_cloud.admin.commands import open_reader
from sedge_cloud.admin.models import find_run
from sedge_cloud.admin.run_report import run_remarks
from sedge_cloud.config import RunConfig
from sedge_cloud.facts.reader import Reader
from sedge_cloud.facts.records import RoundFacts, RunFacts
from sedge_cloud.runs.run import Run
from sedge_cloud.store.database import Store
from sedge_cloud.store.records import DeviceSummary, Summary
from sedge_cloud.store.rows import RunRow
from sedge_emulate.report.page import write_report
from sedge_emulate.result import (
    DeviceResult,
    ModelSize,
    Result,
    RoundResult,
    RunTraffic,
    StrategyResult,
    spread,
)
from sedge_emulate.summaries import personal_shares, round_result
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire.bundle import BundleManifest
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.update import Report


def report(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit status."""
    command = shlex.join(["sedge-emulate", *arguments.argv])
    result = stored_result(open_reader(arguments, None), arguments.runs, command)
    with as_caller():
        write_report(result, arguments.out)
    print(f"report: {arguments.out}")
    return 0


def stored_result(reader: Reader, names: Sequence[str], command: str) -> Result:
    """Collect the named runs into one result.

    Raises ``ConfigError`` if a run does not exist or has no update yet, or if its model or metric differs
    from those of the first run.
    """
    fleet = reader.read()
    runs = [_StoredRun.read(reader.store, fleet.run(name), name) for name in names]
    first = runs[0]
    for run in runs:
        if run.same != first.same:
            expected = f"a run with the same tensors and metric as run {names[0]}"
            raise ConfigError("run", run.facts.run, expected)
    strategies = [_strategy(reader.store, run) for run in runs]
    layout, created = first.manifest.layout, first.facts.created
    return Result(
        fleet=fleet.fleet,
        created=created.isoformat(timespec="seconds") if created else "",
        command=command,
        dataset="",
        split="",
        devices=len({device.device for s in strategies for device in s.devices}),
        seed=first.config.seed,
        model=ModelSize(
            name=first.manifest.name, parameters=layout.size, dense_bytes=_dense_bytes(first)
        ),
        machine=None,
        strategies=strategies,
        metric=first.manifest.metric,
        settings={run.facts.run: msgspec.to_builtins(run.config) for run in runs},
    )


@dataclass(frozen=True)
class _StoredRun:
    """A run's facts, and the summaries of its closed rounds, keyed by the round's number."""

    facts: RunFacts
    config: RunConfig
    manifest: BundleManifest
    summaries: dict[int, Summary]

    @classmethod
    def read(cls, store: Store, facts: RunFacts | None, name: str) -> "_StoredRun":
        row: RunRow = find_run(store, name)
        rows = {r.round: r.summary for r in store.rounds(name) if r.summary is not None}
        found = {
            number: msgspec.msgpack.decode(coded, type=Summary) for number, coded in rows.items()
        }
        if facts is None or not any(summary.devices for summary in found.values()):
            raise ConfigError("run", name, "a run with a closed round that has an update")
        config = msgspec.msgpack.decode(row.config, type=RunConfig)
        return cls(facts, config, Run(row, store).manifest, found)

    @property
    def same(self) -> object:
        """What all runs in a report must have in common: tensors and metric."""
        tensors = [(tensor.name, tensor.shape) for tensor in self.manifest.layout.tensors]
        return tensors, self.manifest.metric

    @property
    def closed(self) -> list[tuple[RoundFacts, Summary]]:
        """The closed rounds that have an update, oldest first."""
        pairs = [(r, self.summaries.get(r.round)) for r in self.facts.rounds]
        return [(facts, summary) for facts, summary in pairs if summary and summary.devices]


def _strategy(store: Store, run: _StoredRun) -> StrategyResult:
    rounds = _rounds(store, run)
    devices = _devices(store, run, Counter(name for r in rounds for name in r.late_devices))
    metric, name = run.manifest.metric, run.facts.run
    sizes = [d.update_bytes for s in run.summaries.values() if s.task == TRAIN for d in s.devices]
    opened = [r.opened for r in run.facts.rounds if r.opened is not None]
    closed = [r.closed for r in run.facts.rounds if r.closed is not None]
    last = [summary for _, summary in run.closed if summary.personal][-1:]
    options: dict[str, Any] = {"strategy": run.config.strategy, **run.config.options}
    return StrategyResult(
        name=f"{name} ({run.config.strategy})",
        options=options,
        rounds=rounds,
        before=spread([device.before for device in devices], metric),
        after=spread([device.after for device in devices], metric),
        devices=devices,
        bytes=RunTraffic(
            device_up=sum(facts.up for facts in run.facts.rounds),
            device_down=sum(facts.down for facts in run.facts.rounds),
            coordinator_up=sum(facts.link_up for facts in run.facts.rounds),
            coordinator_down=sum(facts.link_down for facts in run.facts.rounds),
            update_payload_mean=sum(sizes) / max(1, len(sizes)),
            dense_update=_dense_bytes(run),
        ),
        seconds=_seconds(min(opened), max(closed)) if opened and closed else 0.0,
        personal=[share for summary in last for share in personal_shares(summary)],
        remarks=list(run_remarks(store, run.facts)),
    )


def _rounds(store: Store, run: _StoredRun) -> list[RoundResult]:
    """Return the closed training rounds that have an update."""
    closed = [(facts, summary) for facts, summary in run.closed if summary.task == TRAIN]
    return [_round(store, run, facts, summary) for facts, summary in closed]


def _round(store: Store, run: _StoredRun, facts: RoundFacts, summary: Summary) -> RoundResult:
    came = {device.device for device in summary.devices}
    late = {order.device for order in store.orders(run.facts.run, facts.round)} - came
    known_times = facts.opened is not None and facts.closed is not None
    start = run.facts.created if known_times else None
    return msgspec.structs.replace(
        round_result(summary),
        late=len(facts.late),
        seconds=_seconds(facts.opened, facts.closed),
        opened_s=_seconds(start, facts.opened),
        closed_s=_seconds(start, facts.closed),
        bytes_up=facts.up,
        bytes_down=facts.down,
        newcomers=len(facts.newcomers),
        newcomer_up=facts.newcomer_up,
        newcomer_down=facts.newcomer_down,
        late_devices=sorted(late),
    )


def _devices(store: Store, run: _StoredRun, late: Counter[str]) -> list[DeviceResult]:
    """Return every device that has sent an update, with the values from its last update."""
    last: dict[str, tuple[int, DeviceSummary]] = {}
    for facts, summary in run.closed:
        last.update((device.device, (facts.round, device)) for device in summary.devices)
    found: list[DeviceResult] = []
    for name, (number, device) in sorted(last.items()):
        row = store.update(run.facts.run, number, name)
        seen = msgspec.msgpack.decode(row.report, type=Report) if row and row.report else None
        found.append(
            DeviceResult(
                device=name,
                num_train=device.num_examples,
                num_test=seen.before.num_examples if seen else 0,
                num_classes=0,
                before=device.before,
                after=device.after,
                late=late[name],
            )
        )
    return found


def _dense_bytes(run: _StoredRun) -> int:
    """Return the size in bytes of the model as plain float32."""
    return 4 * run.manifest.layout.size


def _seconds(begin: datetime | None, end: datetime | None) -> float:
    """Return the seconds from ``begin`` to ``end``, or 0 if either is unknown."""
    return max((end - begin).total_seconds(), 0.0) if begin and end else 0.0
