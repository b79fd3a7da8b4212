"""Builds the facts about a device from its row, its session, and its histories in the existing runs."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

import msgspec

from sedge_cloud.facts.records import (
    AgentVersion,
    Code,
    DeviceFacts,
    DeviceState,
    Problem,
    printable,
    when,
)
from sedge_cloud.store.database import Store
from sedge_cloud.store.records import Census, DevicePast
from sedge_cloud.store.rows import DeviceRow, HistoryRow, SessionRow
from sedge_protocol import VERSION
from sedge_protocol.wire.messages import Hello

# Matches the release number in an agent's version string.
_NUMBERS = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
# A device's trend compares means over this many values.
RECENT = 3


# Work in progress: a running run, or the round in which an ended run serves newcomers.
Going: TypeAlias = str | tuple[str, int]


@dataclass
class KnownDevice:
    """What a reader knows about a device; ``pasts`` ends with the run whose round closed most recently."""

    row: DeviceRow
    hello: Hello | None = None
    session: SessionRow = field(default_factory=SessionRow)
    pasts: dict[str, DevicePast] = field(default_factory=dict[str, DevicePast])
    paused: float | None = None

    def take_row(self, row: DeviceRow) -> None:
        """Update the device from its changed row."""
        self.row, self.hello = row, row.read_hello()

    def take_history(self, row: HistoryRow) -> None:
        """Add or replace the device's history in a run."""
        self.pasts.pop(row.run, None)
        self.pasts[row.run] = msgspec.msgpack.decode(row.past, type=DevicePast)

    def forget(self, runs: Iterable[str]) -> None:
        """Drop the device's histories in these deleted runs."""
        for run in runs:
            self.pasts.pop(run, None)

    def facts(self, running: bool, going: Collection[Going]) -> DeviceFacts:
        """Build the facts. Whether the device is online is only known if the service is ``running``.

        The device is shown as working only if its order belongs to work in ``going``.
        """
        hello, session, pasts = self.hello, self.session, list(self.pasts.values())
        works = session.run in going or (session.run, session.round) in going
        last = pasts[-1] if pasts else DevicePast()
        return DeviceFacts(
            device=self.row.device,
            state=self._state(running),
            since=when(session.since if self.paused is None else self.paused),
            heard=when(session.heard),
            enrolled=when(self.row.enrolled),
            version="" if hello is None else printable(hello.version),
            backends=() if hello is None else tuple(map(printable, hello.backends)),
            memory_mb=0 if hello is None else hello.memory_mb,
            num_train=0 if hello is None else hello.num_train,
            updates=sum(past.updates for past in pasts),
            metric=last.metric,
            before=last.before[-1] if last.before else None,
            after=last.after,
            change=change(last),
            seconds=last.seconds,
            up=sum(past.up for past in pasts),
            down=sum(past.down for past in pasts),
            strikes=sum(past.strikes for past in pasts),
            waits="" if hello is None else printable(hello.waits),
            order=(session.run, session.round),
            doing=session.state if works else "",
            doing_since=when(session.state_since) if works else None,
            done=session.done if works else 0,
            total=session.total if works else 0,
            waits_since=when(session.waits_since) if session.waits else None,
            error=printable(session.error),
            error_since=when(session.error_at),
            history=last.before,
            trouble=self._trouble(last),
        )

    def _state(self, running: bool) -> DeviceState:
        if self.row.revoked:
            return "revoked"
        if self.hello is None:
            return "never"
        if self.paused is not None:
            return "paused"
        if not running:
            return "unknown"
        return "online" if self.session.online else "offline"

    def _trouble(self, past: DevicePast) -> Problem | None:
        """Return the problem if the device's last update was ignored or only counted in part."""
        why = past.shortfall
        if why is None:
            return None
        name, text = self.row.device, printable(why.detail)
        declined = {name: text} if why.kind == "declined" else {}
        rejected = {name: text} if why.kind == "rejected" else {}
        distrusted = {name: why.counted} if why.kind == "distrusted" else {}
        run = next(reversed(self.pasts))
        return next(refusals(run, why.round, when(why.at), declined, rejected, distrusted))


def versions_of(counts: Mapping[str, int]) -> tuple[AgentVersion, ...]:
    """Return the agent versions and the number of devices that have each, most common first."""
    order = sorted(counts, key=lambda version: (-counts[version], version))
    return tuple(
        AgentVersion(version=printable(one), devices=counts[one], behind=_is_behind(one))
        for one in order
    )


def _is_behind(version: str) -> bool:
    """Return True if an agent's version, such as ``0.1.0`` or ``java 0.1.0``, is older than ours."""
    here, there = _NUMBERS.search(VERSION), _NUMBERS.search(version)
    if here is None or there is None:
        return False
    return [*map(int, there.groups())] < [*map(int, here.groups())]


def states_of(census: Census, running: bool) -> dict[DeviceState, int]:
    """Count the devices in each state."""
    heard = census.all - census.revoked - census.never - census.paused
    online = census.online - census.paused_online if running else 0
    return {
        "online": online,
        "offline": heard - online if running else 0,
        "never": census.never,
        "paused": census.paused,
        "revoked": census.revoked,
        "unknown": 0 if running else heard,
    }


def read_devices(store: Store, names: Collection[str]) -> dict[str, KnownDevice]:
    """Read the rows of these devices. Returns the devices that exist, by id."""
    known = {name: KnownDevice(row) for name, row in store.devices_named(names).items()}
    paused = store.paused() if known else dict[str, float]()
    for device in known.values():
        device.take_row(device.row)
        device.paused = paused.get(device.row.device)
    for session in store.sessions_named(known):
        known[session.device].session = session
    for history in store.histories_named(known):
        known[history.device].take_history(history)
    return known


def lots_of(
    store: Store, names: Sequence[str], running: bool, going: Collection[Going], size: int
) -> Iterator[list[DeviceFacts]]:
    """Yield facts about these devices in batches of ``size``. Each batch describes a single moment.

    ``running`` and ``going`` are as in ``facts``.
    """
    for start in range(0, len(names), size):
        some = names[start : start + size]
        with store.reading():
            known = read_devices(store, some)
        yield [known[name].facts(running, going) for name in some if name in known]


def change(past: DevicePast) -> float | None:
    """Return by how much the latest mean beats the best earlier one; None if there are too few values."""
    ends = range(RECENT, len(past.before) + 1)
    means = [sum(past.before[end - RECENT : end]) / RECENT for end in ends]
    if len(means) <= RECENT:
        return None
    best = min(means[:-RECENT], key=past.metric.badness)
    better = past.metric.badness(best) - past.metric.badness(means[-1])
    return better if past.metric.share else better / (abs(best) or 1.0)


def refusals(
    run: str,
    number: int,
    at: datetime | None,
    declined: Mapping[str, str],
    rejected: Mapping[str, str],
    distrusted: Mapping[str, float],
) -> Iterator[Problem]:
    """Yield a problem for each device whose update was ignored or counted only in part, and say why."""
    found: list[tuple[Code, str, str]] = [
        *(
            ("device_revoked" if why == "revoked" else "device_declined", name,
             f"declined round {number}: {why}")
            for name, why in declined.items()
        ),
        *(("device_rejected", name, f"its update of round {number} was rejected: {why}")
          for name, why in rejected.items()),
        *(("device_distrusted", name,
           f"its update of round {number} was unlike the others and counted {counted(factor)}")
          for name, factor in distrusted.items()),
    ]  # fmt: skip
    for code, name, text in found:
        mild = code in ("device_declined", "device_revoked")
        yield Problem(
            code=code,
            severity="warning" if mild else "error",
            subject=name,
            run=run,
            text=text,
            since=at,
        )


def counted(factor: float) -> str:
    """Format the extent to which a distrusted update counted."""
    return f"{factor:.2g} times" if factor >= 0.001 else "next to nothing"
