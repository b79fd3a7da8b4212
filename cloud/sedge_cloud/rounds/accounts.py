"""Sums up each closed round once: its figures, each device's history, the run's totals.

    round's rows  ->  parts of the round, histories of its devices, sums of the run

They are written in the transaction that closes a round; for rounds closed by an earlier version, they are
written at startup. Status displays read nothing else about a closed round, so they cost the same after ten
rounds as after ten thousand.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.runs.capabilities import outline
from sedge_cloud.store.records import (
    Accounts,
    DevicePast,
    DeviceSummary,
    RoundParts,
    RunSums,
    Shortfall,
    Summary,
)
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import HistoryRow, RoundReceipts, RoundRow, TrafficRow
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.objective import Metric

# A problem with a device's update is forgotten once the device has sent this many good updates.
FORGIVEN = 3
# How many values of the metric before training to keep per device.
KEPT = 24


class _Costs(msgspec.Struct, frozen=True):
    """The costs that a device reports for a round: training seconds, and bytes not sent by the broker."""

    seconds: float = 0.0
    http_bytes: int = 0


def catch_up_all(store: Rows) -> None:
    """Account for closed rounds of all runs that an earlier version left unaccounted for.

    Raises ``StorageError``.
    """
    for row in store.runs():
        catch_up(store, row.run)
        if not row.terms:
            terms = outline(msgspec.msgpack.decode(row.config, type=RunConfig))
            store.set_terms(row.run, msgspec.msgpack.encode(terms))


def catch_up(store: Rows, run: str) -> None:
    """Account for the closed rounds of a run that are not accounted for yet.

    Raises ``StorageError``.
    """
    for row in store.unaccounted(run, read_sums(store.sums(run)).round):
        if row.summary is not None:  # a round without a summary did nothing but serve newcomers
            summary = msgspec.msgpack.decode(row.summary, type=Summary)
            named = {*(part.device for part in summary.devices), *summary.distrusted}
            store.account(account(row, read_answered(store, row, named=named), summary))


@dataclass(frozen=True)
class RoundAnswers:
    """The stored answers to a round, and the histories of its devices and its run up to then.

    ``answers`` maps each device in the round to its reason for declining, or to an empty text. ``pasts``
    holds the histories of devices that took part in earlier rounds. ``traffic`` holds the rows that were
    stored before the round closed.
    """

    answers: dict[str, str]
    received: RoundReceipts
    traffic: list[TrafficRow]
    pasts: dict[str, DevicePast]
    sums: RunSums

    @property
    def is_first_return(self) -> bool:
        """Return True if this is the run's first round that includes a device which has trained before."""
        return not self.sums.returned and self.have_trained(self.answers)

    def have_trained(self, devices: Iterable[str]) -> bool:
        """Return True if one of these devices has trained in an earlier round."""
        return any(self.pasts[name].trained for name in devices if name in self.pasts)


def read_answered(
    store: Rows, row: RoundRow, since: int | None = None, named: Iterable[str] = ()
) -> RoundAnswers:
    """Read the answers to a round, and the histories of its devices.

    ``since`` selects late updates as in ``Rows.received``. ``named`` are further devices whose histories
    are needed.
    """
    run, number = row.run, row.round
    answers, received = dict(store.answers(run, number)), store.received(run, number, since)
    came = {update.device for updates in received for update in updates}
    pasts = store.pasts(run, {*answers, *came, *named})
    return RoundAnswers(
        answers,
        received,
        store.traffic(run, number),
        {name: msgspec.msgpack.decode(past, type=DevicePast) for name, past in pasts.items()},
        read_sums(store.sums(run)),
    )


def account(
    row: RoundRow, given: RoundAnswers, summary: Summary, moved: Sequence[TrafficRow] = ()
) -> Accounts:
    """Account for one closed round, the run's next; ``moved`` is traffic that has not been stored yet."""
    run, number, sums = row.run, row.round, given.sums
    traffic = _traffic(given.traffic, moved)
    costs = {
        update.device: msgspec.msgpack.decode(update.report, type=_Costs)
        for update in given.received.counted
    }
    devices = {part.device: part for part in summary.devices}
    http = sum(cost.http_bytes for cost in costs.values())
    parts = _parts(number, given, summary, list(traffic.values()), http)
    took = {device: cost.seconds for device, cost in costs.items()}
    closed = _Round(row, parts, devices, took, traffic)
    # Late updates may have counted, so include devices that were not asked in this round.
    names = sorted({*(given.answers or devices), *summary.distrusted})
    histories = [
        HistoryRow(run, name, number, msgspec.msgpack.encode(closed.of(name, past)))
        for name, past in ((name, given.pasts.get(name, DevicePast())) for name in names)
    ]
    sums = RunSums(
        round=number,
        closed=sums.closed + 1,
        link_up=sums.link_up + row.up,
        link_down=sums.link_down + row.down,
        whole=sums.whole + len(parts.whole),
        remarks=sums.remarks + summary.remarks,
        returned=sums.returned or given.have_trained(names),
        **{key: getattr(sums, key) + getattr(parts, key) for key in _SUMMED},
    )
    coded = msgspec.msgpack.encode(parts), msgspec.msgpack.encode(sums)
    return Accounts(run, number, *coded, tuple(histories))


def _traffic(stored: Iterable[TrafficRow], moved: Iterable[TrafficRow]) -> dict[str, TrafficRow]:
    """Merge a round's stored and new traffic by device. ``whole`` stays set if a stored row has it."""
    traffic = {row.device: row for row in stored}
    for row in moved:
        before = traffic.get(row.device)
        whole = row.whole or (before is not None and before.whole)
        traffic[row.device] = msgspec.structs.replace(row, whole=whole)
    return dict(sorted(traffic.items()))


_SUMMED = ("up", "down", "newcomer_up", "newcomer_down", "http")


def read_sums(coded: bytes) -> RunSums:
    """Decode a run's sums. They are all zero if the run has no closed round."""
    return msgspec.msgpack.decode(coded, type=RunSums) if coded else RunSums()


def _parts(
    number: int, given: RoundAnswers, summary: Summary, traffic: Sequence[TrafficRow], http: int
) -> RoundParts:
    devices, answers, received = summary.devices, given.answers, given.received
    came = {part.device for part in devices}
    declined = {name: why for name, why in answers.items() if why and name not in came}
    rejected = {u.device: f"{u.rejected}: {u.detail}" for u in received.receipts if u.rejected}
    # ``answers`` is empty if [keep] has caused its rows to be deleted.
    new = {name for name in answers or came if name not in given.pasts}
    first = [moved for moved in traffic if moved.device in new]
    told = () if summary.withheld else devices
    before, after = ([getattr(part, key) for part in told] for key in ("before", "after"))
    answered = came | declined.keys() | rejected.keys()
    return RoundParts(
        cohort=summary.cohort,
        updates=len(devices),
        metric=summary.metric,
        before=summary.before if before else None,
        before_worst=worst_tenth(before, summary.metric),
        after=summary.after if after else None,
        after_worst=worst_tenth(after, summary.metric),
        train_loss=summary.train_loss if before else None,
        **_bytes(traffic, first),
        http=http,
        newcomers=tuple(sorted(new)),
        whole=tuple(moved.device for moved in traffic if moved.whole),
        late=tuple(update.device for update in received.late if update.late == number),
        personal=summary.personal,
        declined=declined,
        rejected=rejected,
        distrusted=summary.distrusted,
        missing=tuple(name for name in answers if name not in answered),
        failure=summary.failure,
    )


def _bytes(traffic: Iterable[TrafficRow], first: Iterable[TrafficRow]) -> dict[str, int]:
    rows, new = list(traffic), list(first)
    return {
        "up": sum(moved.up for moved in rows),
        "down": sum(moved.down for moved in rows),
        "newcomer_up": sum(moved.up for moved in new),
        "newcomer_down": sum(moved.down for moved in new),
    }


@dataclass(frozen=True)
class _Round:
    """A closed round that will be added to its devices' histories."""

    row: RoundRow
    parts: RoundParts
    devices: Mapping[str, DeviceSummary]
    took: Mapping[str, float]
    traffic: Mapping[str, TrafficRow]

    def of(self, name: str, past: DevicePast) -> DevicePast:
        """Return a device's history with this round included."""
        part, moved = self.devices.get(name), self.traffic.get(name)
        shortfall = self._shortfall(name)
        strikes = shortfall is not None and shortfall.kind != "declined"
        past = msgspec.structs.replace(
            past,
            up=past.up + (moved.up if moved else 0),
            down=past.down + (moved.down if moved else 0),
            strikes=past.strikes + strikes,
            seconds=self.took.get(name, past.seconds),
        )
        if part is not None:
            told = part if self.parts.before is not None else None
            past = _with_update(past, told, self.parts.metric, self.row.task == TRAIN)
        if shortfall is None and part is None:  # the device has not answered
            return past
        good = 0 if shortfall is not None else past.good + 1
        lasts = (
            past.shortfall is not None and past.shortfall.kind == "distrusted" and good < FORGIVEN
        )
        kept = shortfall if shortfall is not None or not lasts else past.shortfall
        return msgspec.structs.replace(past, good=good, shortfall=kept)

    def _shortfall(self, name: str) -> Shortfall | None:
        """Return the problem if a device's update was ignored or only counted in part; otherwise None."""
        number, at = self.row.round, self.row.closed
        if name in self.parts.rejected:
            return Shortfall("rejected", number, self.parts.rejected[name], at=at)
        if name in self.parts.distrusted:
            return Shortfall("distrusted", number, counted=self.parts.distrusted[name], at=at)
        if name in self.parts.declined:
            return Shortfall("declined", number, self.parts.declined[name], at=at)
        return None


def _with_update(
    past: DevicePast, told: DeviceSummary | None, metric: Metric, trained: bool
) -> DevicePast:
    """Return the history with one more update.

    ``told`` holds the metrics of the update, or is None if they are withheld.
    """
    return msgspec.structs.replace(
        past,
        updates=past.updates + 1,
        trained=past.trained + trained,
        metric=metric,
        before=past.before if told is None else (*past.before, told.before)[-KEPT:],
        after=past.after if told is None else told.after,
    )


def worst_tenth(values: Sequence[float], metric: Metric) -> float | None:
    """Return the mean of the worst tenth of the values, but at least one value; None if there are none."""
    count = max(1, round(len(values) / 10))
    worst = sorted(values, key=metric.badness, reverse=True)[:count]
    return sum(worst) / len(worst) if worst else None
