"""Reads the facts about a fleet: from its store, and from what the service keeps beside it (live.py).

A reader keeps what does not change, so reading again costs only what is new. It works beside a running
service, in its process or in another, and only reads.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.facts import live as live_files
from sedge_cloud.facts.history import DeviceHistory, RunHistory, Times, daily_growth
from sedge_cloud.facts.live import Live, LiveDevice, folder_bytes
from sedge_cloud.facts.open_rounds import Waits, run_waits
from sedge_cloud.facts.problems import problems
from sedge_cloud.facts.records import (
    CoordinatorFacts,
    DeviceFacts,
    DeviceState,
    DiskFacts,
    Fleet,
    RoundFacts,
    RunFacts,
    when,
)
from sedge_cloud.ingest.sessions import plain, stored_hello
from sedge_cloud.rounds.lifecycle import RUNNING
from sedge_cloud.rounds.plans import newcomer_features
from sedge_cloud.runs.capabilities import lacking
from sedge_cloud.runs.run import Run, RunState
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import DeviceRow, RoundRow, RunRow
from sedge_protocol.errors import ConfigError, StorageError, StrategyError
from sedge_protocol.wire.messages import Hello

# How long the size of the state folder is kept before it is measured again.
_DISK_S = 60.0
# The rounds whose time says how long one usually takes.
_USUAL = 9

# What a device with this hello lacks for a run's work.
Missing: TypeAlias = Callable[[Hello], list[str]]


@dataclass
class _Kept:
    """What a reader keeps of a run."""

    history: RunHistory
    coded: bytes
    config: RunConfig
    missing: Missing | None = None
    tensors: dict[str, int] = field(default_factory=dict[str, int])
    groups: tuple[bytes, dict[str, tuple[str, ...]]] = (b"", {})


def _nothing(hello: Hello) -> list[str]:
    """What a device lacks for a run that has no strategy."""
    return []


@dataclass
class Reader:
    """The facts about the fleet with this name, whose state is in ``folder``; ``store`` is opened on it."""

    fleet: str
    folder: Path
    store: Store
    _runs: dict[str, _Kept] = field(default_factory=dict[str, _Kept])
    _devices: dict[str, DeviceHistory] = field(default_factory=dict[str, DeviceHistory])
    _hellos: dict[str, tuple[bytes | None, Hello | None]] = field(
        default_factory=dict[str, tuple[bytes | None, Hello | None]]
    )
    # What a device's facts were made of besides its past, and they.
    _known: dict[str, tuple[object, DeviceFacts]] = field(
        default_factory=dict[str, tuple[object, DeviceFacts]]
    )
    _times: Times = field(default_factory=Times)
    _offset: int = 0
    _used: tuple[float, int] = (0.0, 0)

    @cached_property
    def _run_store(self) -> RunStore:
        return RunStore(self.store)

    def read(self, now: float | None = None) -> Fleet:
        """All facts, at this wall clock. Raises ``StorageError`` when the store cannot be read."""
        now = time.time() if now is None else now
        live, sign = live_files.read_live(self.folder)
        lines, self._offset = live_files.read_history(self.folder, self._offset)
        for line in lines:
            self._times.take(line)
        coordinator = _coordinator(live, sign, now)
        rows, devices = self.store.runs(), self.store.devices()
        for name in self._runs.keys() - {row.run for row in rows}:
            del self._runs[name]
        hellos = {row.device: self._hello(row) for row in devices}
        opens = [(row, self._kept(row), self._open_row(row)) for row in rows]
        known = {
            row.device: self._device(row, hellos[row.device], coordinator, live.devices)
            for row in devices
        }
        runs = tuple(
            self._run(row, kept, opened, known, hellos, now, live.started)
            for row, kept, opened in opens
        )
        facts = Fleet(
            fleet=self.fleet,
            at=datetime.fromtimestamp(now, UTC),
            coordinator=coordinator,
            disk=self._disk(now),
            problems=(),
            runs=runs,
            devices=tuple(known.values()),
        )
        return msgspec.structs.replace(facts, problems=problems(facts))

    def _kept(self, row: RunRow) -> _Kept:
        kept = self._runs.get(row.run)
        if kept is None or kept.history.created != row.created:
            config = msgspec.msgpack.decode(row.config, type=RunConfig)
            kept = self._runs[row.run] = _Kept(RunHistory(row.created), row.config, config)
        elif kept.coded != row.config:  # resumed
            kept.coded = row.config
            kept.config = msgspec.msgpack.decode(row.config, type=RunConfig)
        return kept

    def _open_row(self, row: RunRow) -> RoundRow | None:
        """Read the newly closed rounds of a run; the one that is open in the store."""
        history = self._runs[row.run].history
        before = len(history.rounds)
        opened = history.read(self.store, row.run, self._times, self._devices)
        if len(history.rounds) > before:  # the devices' past has grown
            self._known.clear()
        return opened

    def _run(
        self,
        row: RunRow,
        kept: _Kept,
        opened: RoundRow | None,
        devices: Mapping[str, DeviceFacts],
        hellos: Mapping[str, Hello | None],
        now: float,
        started: float,
    ) -> RunFacts:
        closed = kept.history.rounds
        running = row.status == RUNNING
        current, why, unable = None, "", dict[str, str]()
        if running:
            missing = self._missing(row, kept)
            found = {name: missing(hello) for name, hello in hellos.items() if hello is not None}
            unable = {
                name: ", ".join(what)
                for name, what in found.items()
                if what and devices[name].state != "revoked"
            }
        if opened is not None:
            opening = self._times.of(row.run, opened.round, "opened", row.created)
            waits = Waits(kept.config, devices, unable, now)
            current = waits.open_round(self.store, row, opened.round, opening, started)
            current = msgspec.structs.replace(current, usual_s=_usual(closed))
        if running and current is None:
            why = run_waits(kept.config, devices, unable)
        elif row.status == "failed":
            why = closed[-1].failure if closed else ""
            why = why or self._times.ended.get(row.run, (0.0, ""))[1]
        return RunFacts(
            run=row.run,
            status=row.status,
            strategy=kept.config.strategy,
            created=when(row.created),
            closed_rounds=len(closed),
            total_rounds=kept.config.total_rounds,
            why=why,
            open=current,
            rounds=tuple(closed),
            groups=self._groups(row, kept),
            unable=unable,
            tensors=kept.tensors,
        )

    def _missing(self, row: RunRow, kept: _Kept) -> Missing:
        """What a device lacks for a run's work, by its hello. Found once: it reads the run's bundle."""
        if kept.missing is None:
            run = Run(row, self.store)
            try:
                features, needs = newcomer_features(run, self._run_store), lacking(run)
            except (StrategyError, ConfigError):  # the service fails such a run, and says why
                features, needs = frozenset[str](), _nothing
            if kept.config.schedule.steps:  # in some rounds
                features |= {"schedule"}
            kept.tensors = {tensor.name: tensor.size for tensor in run.manifest.layout.tensors}
            kept.missing = lambda hello: [
                *needs(hello),
                *sorted(features.difference(hello.codecs)),
            ]
        return kept.missing

    def _groups(self, row: RunRow, kept: _Kept) -> dict[str, tuple[str, ...]]:
        blob = msgspec.msgpack.decode(row.state, type=RunState).groups
        if blob != kept.groups[0]:
            try:
                kept.groups = blob, dict(self._run_store.read_groups(blob))
            except StorageError:  # collected meanwhile: the next reading has the next groups
                return {}
        return kept.groups[1]

    def _hello(self, row: DeviceRow) -> Hello | None:
        coded, hello = self._hellos.get(row.device, (None, None))
        if coded != row.hello:
            hello = stored_hello(row)
            self._hellos[row.device] = row.hello, hello
        return hello

    def _device(
        self,
        row: DeviceRow,
        hello: Hello | None,
        coordinator: CoordinatorFacts,
        live: Mapping[str, LiveDevice],
    ) -> DeviceFacts:
        now = live.get(row.device, LiveDevice(False))
        made_of = (row.revoked, hello, coordinator.running, now)
        kept, facts = self._known.get(row.device, (None, None))
        if facts is None or made_of != kept:
            facts = self._new_device(row, hello, coordinator, now)
            self._known[row.device] = made_of, facts
        return facts

    def _new_device(
        self,
        row: DeviceRow,
        hello: Hello | None,
        coordinator: CoordinatorFacts,
        now: LiveDevice,
    ) -> DeviceFacts:
        past = self._devices.get(row.device, DeviceHistory())
        state: DeviceState = "online" if now.online else "offline"
        if row.revoked:
            state = "revoked"
        elif hello is None:
            state = "never"
        elif not coordinator.running:
            state = "unknown"
        return DeviceFacts(
            device=row.device,
            state=state,
            since=when(now.since),
            heard=when(now.heard),
            version="" if hello is None else plain(hello.version),
            backends=() if hello is None else tuple(map(plain, hello.backends)),
            memory_mb=0 if hello is None else hello.memory_mb,
            num_train=0 if hello is None else hello.num_train,
            updates=past.updates,
            metric=past.metric,
            before=past.before[-1] if past.before else None,
            after=past.after,
            change=past.change(),
            seconds=past.seconds,
            up=past.up,
            down=past.down,
            strikes=past.strikes,
            waits="" if hello is None else plain(hello.waits),
            error=plain(now.error),
            error_since=when(now.error_at),
            history=tuple(past.before),
            trouble=past.trouble,
        )

    def _disk(self, now: float) -> DiskFacts:
        if now - self._used[0] >= _DISK_S or now < self._used[0]:
            self._used = now, folder_bytes(self.folder)
        disk = shutil.disk_usage(self.folder)
        daily, watched = daily_growth([*self._times.disk, self._used])
        days = disk.free / daily if daily is not None and daily > 0 else None
        return DiskFacts(
            path=str(self.folder),
            used=self._used[1],
            free=disk.free,
            total=disk.total,
            daily=daily,
            watched_s=watched,
            full_in_days=days,
        )


def _usual(closed: Sequence[RoundFacts]) -> float | None:
    """The median time of the last rounds, in seconds; None where it is not known."""
    took = [
        (r.closed - r.opened).total_seconds()
        for r in closed[-_USUAL:]
        if r.opened is not None and r.closed is not None
    ]
    return statistics.median(took) if took else None


def _coordinator(live: Live, sign: float, now: float) -> CoordinatorFacts:
    running = live.running and now - sign < live_files.SILENT_S
    return CoordinatorFacts(
        running=running,
        since=when(live.started),
        heard=when(sign),
        link=live.link and running,
        link_since=when(live.link_since),
        link_error=plain(live.link_error),
        max_packet=live.max_packet,
        error=live.error,
        error_since=when(live.error_at),
        counters=live.counters,
    )
