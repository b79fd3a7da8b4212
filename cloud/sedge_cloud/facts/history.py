"""Closed rounds as facts, each read once, and what they say of every device."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from sedge_cloud.facts.records import Code, Problem, RoundFacts, when
from sedge_cloud.ingest.sessions import plain
from sedge_cloud.rounds.summary import Summary
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import RoundRow
from sedge_protocol.wire.objective import ACCURACY, Metric

# A device whose update was distrusted has to send so many good ones before that is forgotten.
FORGIVEN = 3
# The accuracies that are kept of a device, and how many of them make one mean.
KEPT, RECENT = 24, 3


class Took(msgspec.Struct, frozen=True):
    """The field of a device's report that says how long its training took."""

    seconds: float = 0.0


@dataclass
class DeviceHistory:
    """What closed rounds say of a device; ``before`` are its last values of ``metric`` in the run ``run``.

    ``trouble`` is why its last update did not count in full, ``good`` how many have since.
    """

    run: str = ""
    updates: int = 0
    metric: Metric = ACCURACY
    before: list[float] = field(default_factory=list[float])
    after: float | None = None
    seconds: float | None = None
    up: int = 0
    down: int = 0
    strikes: int = 0
    trouble: Problem | None = None
    good: int = 0

    def judge(self, trouble: Problem | None) -> None:
        """Note what became of its part in a round; None for an update that counts in full."""
        self.good = 0 if trouble is not None else self.good + 1
        lasts = self.trouble is not None and self.trouble.code == "device_distrusted"
        if trouble is not None or not lasts or self.good >= FORGIVEN:
            self.trouble = trouble

    def change(self) -> float | None:
        """How much better the mean of the last values is than the best one before; None for few."""
        ends = range(RECENT, len(self.before) + 1)
        means = [sum(self.before[end - RECENT : end]) / RECENT for end in ends]
        if len(means) <= RECENT:
            return None
        best = min(means[:-RECENT], key=self.metric.badness)
        better = self.metric.badness(best) - self.metric.badness(means[-1])
        return better if self.metric.share else better / (abs(best) or 1.0)


@dataclass
class Times:
    """When things happened, from the history's lines."""

    rounds: dict[tuple[str, int], dict[str, float]] = field(
        default_factory=dict[tuple[str, int], dict[str, float]]
    )
    ended: dict[str, tuple[float, str]] = field(default_factory=dict[str, tuple[float, str]])
    disk: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def take(self, line: Mapping[str, object]) -> None:
        """Take one line over; one that is not as expected says nothing."""
        match line:
            case {"event": "opened", "run": str(run), "round": int(number), "at": float(at)}:
                self.rounds.setdefault((run, number), {})["opened"] = at
            case {"event": "closed", "run": str(run), "round": int(number), "at": float(at)}:
                self.rounds.setdefault((run, number), {})["closed"] = at
            case {"event": "ended", "run": str(run), "why": str(why), "at": float(at)}:
                self.ended[run] = at, why
            case {"event": "disk", "used": int(used), "at": float(at)}:
                self.disk.append((at, used))
            case _:
                pass

    def of(self, run: str, number: int, event: str, since: float = 0.0) -> float:
        """When a round opened or closed, 0 if unknown; what was before ``since`` was another run's."""
        at = self.rounds.get((run, number), {}).get(event, 0.0)
        return at if at >= since else 0.0


class RunHistory:
    """The closed rounds of one run, read as they come."""

    def __init__(self, created: float) -> None:
        self.created = created
        self.rounds: list[RoundFacts] = []
        self._next = 1  # the number of the first round that has not been read
        self._seen: set[str] = set()  # the devices with an order in a round that has been read

    def read(
        self, store: Store, run: str, times: Times, devices: dict[str, DeviceHistory]
    ) -> RoundRow | None:
        """Take newly closed rounds over; the round that is open in the store, if there is one."""
        while True:
            row = store.round(run, self._next)
            if row is None or (row.summary is None and row.open):
                return row
            if row.summary is not None:  # otherwise it served newcomers, before the run was resumed
                self.rounds.append(self._closed(store, row, row.summary, times, devices))
            self._next += 1

    def _closed(
        self,
        store: Store,
        row: RoundRow,
        coded: bytes,
        times: Times,
        devices: dict[str, DeviceHistory],
    ) -> RoundFacts:
        run, number = row.run, row.round
        summary = msgspec.msgpack.decode(coded, type=Summary)
        orders, traffic = store.orders(run, number), store.traffic(run, number)
        rejected = {
            u.device: plain(f"{u.rejected}: {u.detail}") for u in store.rejected(run, number)
        }
        declined = {o.device: plain(o.declined) for o in orders if o.declined}
        for update in store.updates(run, number):
            took = msgspec.msgpack.decode(update.report, type=Took)
            devices.setdefault(update.device, DeviceHistory()).seconds = took.seconds
        for moved in traffic:
            device = devices.setdefault(moved.device, DeviceHistory())
            device.up, device.down = device.up + moved.up, device.down + moved.down
        for part in summary.devices:
            device = devices.setdefault(part.device, DeviceHistory())
            if device.run != run:
                device.run, device.metric, device.before = run, summary.metric, []
            device.before = [*device.before, part.before][-KEPT:]
            device.after = part.after
            device.updates += 1
        for name in rejected.keys() | summary.distrusted.keys():
            devices.setdefault(name, DeviceHistory()).strikes += 1
        at = when(times.of(run, number, "closed", self.created))
        came = {part.device for part in summary.devices}
        for name in came - summary.distrusted.keys():
            devices[name].judge(None)
        declined = {name: why for name, why in declined.items() if name not in came}
        for found in refusals(run, number, at, declined, rejected, summary.distrusted):
            devices.setdefault(found.subject, DeviceHistory()).judge(found)
        gone = (o.device for o in orders)
        new = {o.device for o in orders} - self._seen
        self._seen |= new | came  # of rounds that [keep] has thinned out, the summary is left
        first = [moved for moved in traffic if moved.device in new]
        before = [part.before for part in summary.devices]
        after = [part.after for part in summary.devices]
        return RoundFacts(
            run=run,
            round=number,
            task=row.task,
            state="closed",
            opened=when(times.of(run, number, "opened", self.created)),
            closed=at,
            cohort=summary.cohort,
            updates=len(summary.devices),
            metric=summary.metric,
            before=summary.before if before else None,
            before_worst=worst_tenth(before, summary.metric),
            after=summary.after if after else None,
            after_worst=worst_tenth(after, summary.metric),
            train_loss=summary.train_loss if before else None,
            up=sum(moved.up for moved in traffic),
            down=sum(moved.down for moved in traffic),
            newcomer_up=sum(moved.up for moved in first),
            newcomer_down=sum(moved.down for moved in first),
            newcomers=tuple(sorted(new)),
            link_up=row.up,
            link_down=row.down,
            whole=tuple(moved.device for moved in traffic if moved.whole),
            late=tuple(u.device for u in store.late_updates(run, number, number)),
            personal=summary.personal,
            declined=declined,
            rejected=rejected,
            distrusted=summary.distrusted,
            missing=tuple(n for n in gone if n not in came | declined.keys() | rejected.keys()),
            failure=summary.failure,
        )


def refusals(
    run: str,
    number: int,
    at: datetime | None,
    declined: Mapping[str, str],
    rejected: Mapping[str, str],
    distrusted: Mapping[str, float],
) -> Iterator[Problem]:
    """Whose update of a round did not count, or not in full, and why."""
    found: list[tuple[Code, str, str]] = [
        *(
            ("device_revoked" if why == "revoked" else "device_declined", name,
             f"declined round {number}: {why}")
            for name, why in declined.items()
        ),
        *(("device_rejected", name, f"its update of round {number} was rejected: {why}")
          for name, why in rejected.items()),
        *(("device_distrusted", name,
           f"its update of round {number} was unlike the others and counted {_counted(factor)}")
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


def _counted(factor: float) -> str:
    """How much a distrusted update counted."""
    return f"{factor:.2g} times" if factor >= 0.001 else "next to nothing"


def worst_tenth(values: Sequence[float], metric: Metric = ACCURACY) -> float | None:
    """The mean of the worst tenth, at least of one; None for nothing."""
    count = max(1, round(len(values) / 10))
    worst = sorted(values, key=metric.badness, reverse=True)[:count]
    return sum(worst) / len(worst) if worst else None


def daily_growth(samples: Sequence[tuple[float, int]]) -> tuple[float | None, float]:
    """The slope of (time, bytes) samples of the last week, in bytes a day, and how long they watch, in s.

    None for less than an hour: garbage that has not been collected yet would count as growth.
    """
    if not samples:
        return None, 0.0
    week = [(at, used) for at, used in samples if at >= samples[-1][0] - 7 * 86_400]
    watched = week[-1][0] - week[0][0]
    if watched < 3600:
        return None, watched
    mean_at = sum(at for at, _ in week) / len(week)
    mean_used = sum(used for _, used in week) / len(week)
    spread = sum((at - mean_at) ** 2 for at, _ in week)
    slope = sum((at - mean_at) * (used - mean_used) for at, used in week) / spread
    return slope * 86_400, watched
