"""The leader's view of the devices of a fleet that several processes serve.

This process's ingest knows its own devices. Other processes' devices are read from rows: ``sessions`` says
who is online, ``devices`` has enrolments and hellos (who is waiting), and ``traffic`` has byte counts.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from sedge_cloud.hints import DeviceOnline, Left, ToLeader
from sedge_cloud.rounds.reach import Reach, TrafficMeter
from sedge_cloud.runs.asked import Presence
from sedge_cloud.runs.terms import Terms, abilities
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import DeviceRow, TrafficRow
from sedge_cloud.store.selector import parse
from sedge_protocol.wire.messages import Hello

# The maximum number of offline devices to cache.
MOST_AWAY = 20_000


class _Known(NamedTuple):
    """A device's row, and its hello decoded from the row."""

    row: DeviceRow
    hello: Hello | None


class Everywhere:
    """All devices of the fleet (``Reach``); ``is_ours`` says whether a device belongs to this process.

    Methods raise ``StorageError`` when a row cannot be read.
    """

    def __init__(self, ours: Reach, store: Rows, is_ours: Callable[[str], bool]) -> None:
        self._ours = ours
        self._store = store
        self._is_ours = is_ours
        self._online: dict[str, _Known] = {}  # other processes' devices that are online
        self._away: dict[str, _Known] = {}  # offline devices that have been looked up
        self._changes = 0
        self._since = -1

    def load(self) -> list[ToLeader]:
        """Read changes to other processes' devices. Returns hints about the devices that came or went."""
        since, change = self._since, self._store.change()
        sessions, rows = dict[str, bool](), dict[str, DeviceRow]()
        if change != since:
            sessions = {row.device: row.online for row in self._store.sessions(since)}
            rows = {row.device: row for row in self._store.changed_devices(since)}
            come = (name for name, is_online in sessions.items() if is_online)
            new = [name for name in come if name not in rows and name not in self._online]
            rows |= self._store.devices_named(new)
        self._since = change  # set only now, so that a failed read is repeated
        left = [
            name for name in self._online if not sessions.get(name, True) or self._is_ours(name)
        ]
        self._away = {} if len(self._away) > MOST_AWAY else self._away
        self._away |= {name: self._online.pop(name) for name in left}
        hints: list[ToLeader] = [Left(name) for name in left]
        for name, row in rows.items():
            self._away.pop(name, None)
            last = self._online.get(name)
            if self._is_ours(name) or (last is None and not sessions.get(name)):
                continue
            self._online[name] = known = _Known(row, row.read_hello())
            if known != last:
                hints.append(DeviceOnline(name, last is None or _is_another(last, known)))
        self._changes += len(hints)
        return hints

    @property
    def present(self) -> int:
        """Return the number of devices that are online."""
        return self._ours.present + len(self._online)

    @property
    def changes(self) -> int:
        """Return how many times a device has come or gone."""
        return self._ours.changes + self._changes

    @property
    def returning(self) -> Collection[str]:
        """Return this process's devices that were online before an outage and are not back yet.

        Other processes' devices count as online until their rows say otherwise.
        """
        return self._ours.returning

    def presence(self, device: str) -> Presence:
        """Return a device's presence."""
        if self._is_ours(device):
            return self._ours.presence(device)
        known = self._find(device)
        if known is None:
            return Presence(False, False, False)
        waits = known.hello is not None and bool(known.hello.waits)
        return Presence(device in self._online, waits, known.row.revoked)

    def hello(self, device: str) -> Hello | None:
        """Return a device's last hello, or None."""
        if self._is_ours(device):
            return self._ours.hello(device)
        known = self._find(device)
        return None if known is None else known.hello

    def able(self, terms: Terms, among: Sequence[str] = ()) -> list[str]:
        """Return the sorted ids of devices that are online, are not waiting, and meet a run's terms.

        Only devices that the run selects are considered; if ``among`` is not empty, only the ones it lists.
        """
        names = self._ours.able(terms, among)
        wanted = set(among or self._online)
        if terms.select:
            wanted &= self._store.online_matching(parse(terms.select), among)
        for name, (row, hello) in self._online.items():
            if name not in wanted or row.revoked or hello is None:
                continue
            if not hello.waits and not terms.missing(hello):
                names.append(name)
        return sorted(names)

    def _find(self, device: str) -> _Known | None:
        known = self._online.get(device) or self._away.get(device)
        if known is None and (row := self._store.device(device)) is not None:
            known = self._away[device] = _Known(row, row.read_hello())
        return known


def _is_another(last: _Known, known: _Known) -> bool:
    """Return True if the device's agent has restarted or announces other capabilities."""
    new_start = last.row.incarnation != known.row.incarnation
    return new_start or abilities(last.hello) != abilities(known.hello)


class MeterEverywhere:
    """A ``TrafficMeter`` for all devices: reads ours from memory, other processes' from rows."""

    def __init__(self, ours: TrafficMeter, store: Rows, is_ours: Callable[[str], bool]) -> None:
        self._ours = ours
        self._store = store
        self._is_ours = is_ours

    def of_round(
        self, run: str, number: int, cohort: Iterable[str]
    ) -> tuple[tuple[TrafficRow, ...], tuple[int, int]]:
        """Return byte counts since an open round began: one per device, and our own link's."""
        rows, link = self._ours.of_round(run, number, cohort)
        stored = {row.device: row for row in self._store.traffic(run, number)}
        merged = (row if self._is_ours(row.device) else stored.get(row.device, row) for row in rows)
        return tuple(merged), link
