"""Reads the facts about a fleet from its store: consistent rows, groups of devices, and free disk space.

A reader caches devices and closed rounds, and queries only those that have changed since. It reads runs,
processes, joins, rollouts and disk measurements every time. It is read-only and works while the service is
running, in the same process or in another one.
"""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import msgspec

from sedge_cloud.facts.devices import (
    Going,
    KnownDevice,
    lots_of,
    read_devices,
    states_of,
    versions_of,
)
from sedge_cloud.facts.disk import disk_of
from sedge_cloud.facts.joins import certificate_problems, join_problems
from sedge_cloud.facts.open_rounds import Waits, run_waits
from sedge_cloud.facts.problems import device_problems, problems
from sedge_cloud.facts.processes import coordinator_of, processes_of
from sedge_cloud.facts.records import (
    AgentVersion,
    DeviceFacts,
    DeviceState,
    Fleet,
    Problem,
    RoundFacts,
    RunFacts,
    printable,
    when,
)
from sedge_cloud.facts.rollouts import rollout_of
from sedge_cloud.facts.run_fields import fields_of, privacy_of
from sedge_cloud.facts.selection import DeviceSelection, choose
from sedge_cloud.figures.numbers import natural
from sedge_cloud.runs.terms import Terms
from sedge_cloud.store.database import Store
from sedge_cloud.store.records import RoundParts, RunSums
from sedge_cloud.store.rollouts import FLEET
from sedge_cloud.store.rows import (
    CoordinatorRow,
    RoundRow,
    RunRow,
)
from sedge_cloud.store.schema import FAILED, FINISHED
from sedge_cloud.store.selector import ALL, Condition, DeviceQuery, parse
from sedge_protocol.errors import StorageError

# Problems with devices also change as time passes, so they are recomputed after this long.
AGAIN_S = 60.0
# How many of a run's most recent closed rounds are read by default.
LAST_ROUNDS = 400
# The usual duration of a round is derived from this many recent rounds.
_USUAL = 9
_ALL = 2**31 - 1
# In a fleet of more than MAX_DEVICES, a reader caches only the devices that changed most recently, and
# counts all devices again every COUNT_S.
MAX_DEVICES = 20_000
COUNT_S = 10.0


@dataclass
class _KnownRun:
    """What a reader knows about a run: its closed rounds up to ``read``, and facts that never change."""

    created: float
    closed: list[RoundFacts] = field(default_factory=list[RoundFacts])
    read: int = 0
    coded_terms: bytes = b""
    terms: Terms = field(default_factory=Terms)
    unable: dict[str, str] = field(default_factory=dict[str, str])
    groups: tuple[bytes, dict[str, tuple[str, ...]]] = (b"", {})
    # The reason why no round is open, and the devices whose facts it was derived from.
    waits: tuple[tuple[DeviceFacts, ...] | None, str] = (None, "")


@dataclass(frozen=True)
class _Wrong:
    """The problems last computed for the devices, and the inputs to that computation."""

    devices: tuple[DeviceFacts, ...]
    runs: list[tuple[str, str, bool]]
    at: float
    found: tuple[Problem, ...]


@dataclass
class Reader:
    """Reads the facts about the named fleet, whose state is in ``folder``, from its ``store``.

    It reads the ``last`` closed rounds of each run; None means all of them.
    """

    fleet: str
    folder: Path
    store: Store
    last: int | None = LAST_ROUNDS
    _since: int = -1
    _running: bool | None = None
    _going: frozenset[Going] = frozenset()
    _runs: dict[str, _KnownRun] = field(default_factory=dict[str, _KnownRun])
    _devices: dict[str, KnownDevice] = field(default_factory=dict[str, KnownDevice])
    _facts: dict[str, DeviceFacts] = field(default_factory=dict[str, DeviceFacts])
    # The facts about all cached devices, rebuilt whenever one has changed.
    _all: tuple[DeviceFacts, ...] = ()
    _wrong: "_Wrong | None" = None
    _states: dict[DeviceState, int] = field(default_factory=dict[DeviceState, int])
    _versions: tuple[AgentVersion, ...] = ()
    _counted: tuple[float, int, bool] = (0.0, -1, False)

    def read(self, now: float | None = None) -> Fleet:
        """Read all facts as of ``now``, by default the current time.

        Raises ``StorageError`` when the store cannot be read.
        """
        with self.store.reading():
            now = self.store.clock() if now is None else now
            rows, runs = self.store.coordinators() or [CoordinatorRow()], self.store.runs()
            row = rows[0]
            coordinator = coordinator_of(rows, now)
            changed = self._read_devices(coordinator.running, runs)
            facts = Fleet(
                fleet=self.fleet,
                at=datetime.fromtimestamp(now, UTC),
                coordinator=coordinator,
                disk=disk_of(row, coordinator.running, self.folder, self.store.disk()),
                problems=(),
                runs=tuple(self._run(run, changed, now) for run in runs),
                devices=self._all,
                states=self._count(coordinator.running, now),
                versions=self._versions,
                settings=rollout_of(self.store, FLEET),
                processes=processes_of(self.store.processes(), self.store.leases(), rows, now),
            )
            joining = (*join_problems(self.store, now), *certificate_problems(self.store, now))
        found = problems(facts, self._device_problems(facts) + joining)
        return msgspec.structs.replace(facts, problems=found)

    def choose(self, facts: Fleet, wanted: DeviceSelection) -> tuple[list[DeviceFacts], int]:
        """Return one page of the wanted devices, at most ``MAX_DEVICES``, and how many match on all pages.

        Raises ``ConfigError`` for an invalid condition, or for a tag that no device has.
        """
        most = min(wanted.limit or MAX_DEVICES, MAX_DEVICES)
        lots, found = self.lots(facts, msgspec.structs.replace(wanted, limit=most))
        return next(lots, []), found

    def lots(
        self, facts: Fleet, wanted: DeviceSelection
    ) -> tuple[Iterator[list[DeviceFacts]], int]:
        """Like ``choose``, but returns all of the devices, in batches of ``MAX_DEVICES``.

        The devices are selected now; their facts are read batch by batch.
        """
        running, condition = facts.coordinator.running, ALL
        if wanted.where:
            condition = parse(wanted.where, "where")
            self.store.require_known(condition, "where")
        if not facts.is_large:
            chosen, found = choose(self._matching(facts, condition), wanted)
            return iter([chosen]), found
        choice = DeviceQuery(wanted.state, wanted.search, running, condition)
        with self.store.reading():
            names = self.store.page(choice, wanted.offset, wanted.limit or _ALL)
            found = self.store.count(choice)
        return lots_of(self.store, names, running, self._going, MAX_DEVICES), found

    def device(self, name: str) -> DeviceFacts | None:
        """Return a device's facts, even if it is not cached; None if there is no such device."""
        with self.store.reading():
            return self._facts_of([name]).get(name)

    def _matching(self, facts: Fleet, condition: Condition) -> Sequence[DeviceFacts]:
        """Return the devices that match the condition. The fleet must not be large."""
        if condition is ALL:
            return facts.devices
        choice = DeviceQuery(None, "", facts.coordinator.running, condition)
        names = set(self.store.page(choice, 0, _ALL))
        return [device for device in facts.devices if device.device in names]

    def _count(self, running: bool, now: float) -> dict[DeviceState, int]:
        """Count the devices in each state and, in ``_versions``, by agent version."""
        if len(self._devices) < MAX_DEVICES:
            states: Counter[DeviceState] = Counter(device.state for device in self._all)
            self._states = {state: states[state] for state in get_args(DeviceState)}
            said = [d.version for d in self._all if d.version and d.state != "revoked"]
            self._versions = versions_of(Counter(said))
            return self._states
        at, change, was_running = self._counted
        if (running, self._since) == (was_running, change) or 0 <= now - at < COUNT_S:
            return self._states
        self._counted = now, self._since, running
        self._states = states_of(self.store.census(), running)
        self._versions = versions_of(self.store.agent_versions())
        return self._states

    def _device_problems(self, facts: Fleet) -> tuple[Problem, ...]:
        """Return devices' problems, recomputed if a device has changed or some time has passed."""
        at, last = facts.at.timestamp(), self._wrong
        runs = [(run.run, run.status, bool(run.why)) for run in facts.runs]
        is_new = last is None or last.devices is not facts.devices or last.runs != runs
        if last is None or is_new or not 0 <= at - last.at < AGAIN_S:
            last = self._wrong = _Wrong(facts.devices, runs, at, tuple(device_problems(facts)))
        return last.found

    def _read_devices(self, running: bool, runs: Sequence[RunRow]) -> set[str]:
        """Read the devices that have changed. Returns the cached ones whose row is new or changed."""
        created, since = {run.run: run.created for run in runs}, self._since
        # A new run may have the name of a deleted one.
        gone = [name for name, known in self._runs.items() if created.get(name) != known.created]
        going: frozenset[Going] = frozenset(run.run for run in runs if not run.has_ended)
        if len(going) < len(runs):
            going |= {(row.run, row.round) for row in self.store.open_rounds()}
        ended, self._going = self._going - going, going
        for name in gone:
            del self._runs[name]
        for device in self._devices.values() if gone else ():
            device.forget(gone)
        for name in list(self._devices)[: max(0, len(self._devices) - MAX_DEVICES)]:
            del self._devices[name], self._facts[name]
        self._since = self.store.change()
        rows = self.store.changed_devices(since, MAX_DEVICES)
        sessions = self.store.sessions(since, MAX_DEVICES)
        accounted = self.store.histories(since, MAX_DEVICES)
        names = [row.device for row in rows]
        drawn = dict.fromkeys(
            [*names, *(s.device for s in sessions), *(h.device for h in accounted)]
        )
        fresh = [name for name in drawn if name not in self._devices]
        paused = self.store.paused() if rows else dict[str, float]()
        for row in rows:
            if row.device in self._devices:
                self._devices[row.device].take_row(row)
                self._devices[row.device].paused = paused.get(row.device)
        for session in sessions:
            if session.device in self._devices:
                self._devices[session.device].session = session
        for history in accounted:
            if history.device in self._devices:
                self._devices[history.device].take_history(history)
        for name in drawn:  # moved to the end, because the first ones are evicted first
            if name in self._devices:
                self._devices[name] = self._devices.pop(name)
        changed = set(names) | self._take(fresh[-MAX_DEVICES:])
        if running != self._running or gone or ended:
            self._running, drawn = running, dict.fromkeys(self._devices)
        self._draw(drawn)
        return changed & self._devices.keys()

    def _take(self, names: Collection[str]) -> set[str]:
        """Read devices that are not cached. Returns the ids of those that exist."""
        known = read_devices(self.store, names)
        self._devices.update((name, known[name]) for name in names if name in known)
        return set(known)

    def _draw(self, names: Iterable[str]) -> None:
        """Rebuild the facts about these devices."""
        found, running = [name for name in names if name in self._devices], bool(self._running)
        is_longer = any(name not in self._facts for name in found)
        for name in found:
            self._facts[name] = self._devices[name].facts(running, self._going)
        if is_longer:
            self._facts = dict(sorted(self._facts.items(), key=lambda item: natural(item[0])))
        if found or len(self._facts) != len(self._all):
            self._all = tuple(self._facts.values())

    def _facts_of(self, names: Sequence[str]) -> Mapping[str, DeviceFacts]:
        """Return facts about at least these devices, as a dict from id to facts."""
        missing = [name for name in names if name not in self._facts]
        if missing:
            self._take(missing)
            self._draw(missing)
        return self._facts

    def _run(self, row: RunRow, changed: set[str], now: float) -> RunFacts:
        known = self._runs.get(row.run)
        if known is None:
            known = self._runs[row.run] = _KnownRun(row.created)
        running = not row.has_ended
        if known.coded_terms != row.terms:
            known.coded_terms, known.terms = row.terms, Terms.read(row.terms)
            known.waits = None, ""
            changed = set(self._devices)
        terms = known.terms
        if running:
            self._find_unable(known, changed)
        opened, current, why = self._read_rounds(row, known), None, ""
        unable = known.unable if running else {}
        if opened is not None:
            current = Waits(terms, self._facts_of, unable, now).open_round(self.store, row, opened)
            current = msgspec.structs.replace(current, usual_s=_usual(known.closed))
        if running and current is None:
            # A run that selects by tags is checked every time, since a new tag does not change a device's
            # facts.
            if terms.select or known.waits[0] is not self._all:
                known.waits = self._all, run_waits(terms, self._all, unable, self.store)
            why = known.waits[1]
            if why and (asking := len(self.store.joins(["pending"]))):
                why += f"; {asking} more {'asks' if asking == 1 else 'ask'} to join"
        elif row.status in (FAILED, FINISHED):
            why = row.why
        sums = msgspec.msgpack.decode(row.sums, type=RunSums) if row.sums else RunSums()
        state, config = fields_of(row)
        return RunFacts(
            run=row.run,
            status=row.status,
            strategy=terms.strategy,
            created=when(row.created),
            ended=when(row.ended),
            closed_rounds=sums.closed,
            total_rounds=terms.total_rounds,
            training_rounds=config.num_rounds,
            why=why,
            open=current,
            rounds=tuple(known.closed),
            sums=sums,
            groups=self._groups(state.groups, known),
            unable=dict(unable),
            tensors=terms.tensors,
            rollout=rollout_of(self.store, row.run),
            privacy=privacy_of(state, config),
        )

    def _find_unable(self, known: _KnownRun, changed: set[str]) -> None:
        """Update ``known.unable``: which of the changed devices lack something that the run needs."""
        for name in changed:
            device = self._devices[name]
            lacks = [] if device.hello is None else known.terms.missing(device.hello)
            if lacks and not device.row.revoked:
                known.unable[name] = ", ".join(lacks)
            else:
                known.unable.pop(name, None)

    def _read_rounds(self, row: RunRow, known: _KnownRun) -> RoundRow | None:
        """Read the rounds that have closed since the last reading. Returns the open round, if any."""
        most = _ALL if self.last is None else self.last + 1
        for one in self.store.last_rounds(row.run, known.read, most):
            if one.open:
                return one
            # The round was closed by an earlier version of Sedge and has not been accounted for yet.
            if one.closed and not one.parts:
                return None
            known.read = one.round
            if one.parts:  # a round without parts did nothing but serve newcomers
                known.closed.append(_closed(one))
        if self.last is not None:
            del known.closed[: -self.last]
        return None

    def _groups(self, blob: bytes, known: _KnownRun) -> dict[str, tuple[str, ...]]:
        if blob and blob != known.groups[0]:
            try:
                coded = self.store.blobs.read(blob)
            except StorageError:  # deleted in the meantime; the next reading finds the newer groups
                return {}
            groups = msgspec.msgpack.decode(coded, type=dict[str, tuple[str, ...]])
            known.groups = blob, groups
        return known.groups[1] if blob else {}


def _closed(row: RoundRow) -> RoundFacts:
    parts = msgspec.msgpack.decode(row.parts, type=RoundParts)
    fields = msgspec.structs.asdict(parts)
    for key in ("declined", "rejected"):
        fields[key] = {name: printable(why) for name, why in fields[key].items()}
    return RoundFacts(
        run=row.run,
        round=row.round,
        task=row.task,
        state="closed",
        opened=when(row.opened),
        closed=when(row.closed),
        why=row.why,
        link_up=row.up,
        link_down=row.down,
        **fields,
    )


def _usual(closed: Sequence[RoundFacts]) -> float | None:
    """Return the median duration of recent rounds, in seconds; None if unknown."""
    took = [
        (r.closed - r.opened).total_seconds()
        for r in closed[-_USUAL:]
        if r.opened is not None and r.closed is not None
    ]
    return statistics.median(took) if took else None
