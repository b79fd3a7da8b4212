"""What a closed round adds up to: its figures, each device's past, the run's sums. Once for each round.

    round's rows -> parts of the round, histories of its devices, sums of the run

They are written by the commit that closes the round; at the start, for rounds that an earlier version has
left without. Whoever looks reads this alone of a closed round, so that looking costs the same after ten
rounds and after ten thousand.
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
from sedge_cloud.store.rows import HistoryRow, RoundRow, TrafficRow, UpdateRow
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.objective import ACCURACY, Metric

# A device whose update was distrusted has to send so many good ones before that is forgotten.
FORGIVEN = 3
# The values before training that are kept of a device.
KEPT = 24


class _Costs(msgspec.Struct, frozen=True):
    """What a device's report says of its round's cost: training, and bytes that no broker has seen."""

    seconds: float = 0.0
    http_bytes: int = 0


def catch_up_all(store: Rows) -> None:
    """Account for what an earlier version has left. Raises ``StorageError``."""
    for row in store.runs():
        catch_up(store, row.run)
        if not row.terms:
            terms = outline(msgspec.msgpack.decode(row.config, type=RunConfig))
            store.set_terms(row.run, msgspec.msgpack.encode(terms))


def catch_up(store: Rows, run: str) -> None:
    """Account for a run's closed rounds that are not yet. Raises ``StorageError``."""
    for row in store.unaccounted(run, read_sums(store.sums(run)).round):
        if row.summary is not None:  # otherwise it served newcomers
            summary = msgspec.msgpack.decode(row.summary, type=Summary)
            answers = dict(store.answers(run, row.round))
            received = store.received(run, row.round)
            store.account(account(store, row, summary, answers, received))


def account(
    store: Rows,
    row: RoundRow,
    summary: Summary,
    answers: Mapping[str, str],
    receipts: Sequence[UpdateRow],
    moved: Sequence[TrafficRow] = (),
) -> Accounts:
    """Account for one closed round, the next of its run.

    ``answers`` says of each of its devices why it has declined, or nothing, ``receipts`` are all of the
    round's, and ``moved`` is not stored yet.
    """
    run, number = row.run, row.round
    traffic = _traffic(store.traffic(run, number), moved)
    costs = {
        update.device: msgspec.msgpack.decode(update.report, type=_Costs)
        for update in receipts
        if not update.rejected and not update.late
    }
    came = {part.device for part in summary.devices}
    pasts = store.pasts(run, {*answers, *came, *summary.distrusted})
    late = store.late_updates(run, number, number)
    given = _Given(summary, answers, receipts, late, list(traffic.values()))
    parts = _parts(given, pasts, sum(cost.http_bytes for cost in costs.values()))
    took = {device: cost.seconds for device, cost in costs.items()}
    devices = {part.device: part for part in summary.devices}
    closed = _Round(row, parts, devices, took, traffic)
    # Of those who were not asked, late updates may have counted.
    names = sorted({*(answers or came), *summary.distrusted})
    histories = [
        HistoryRow(run, name, number, msgspec.msgpack.encode(closed.of(name, _read(pasts, name))))
        for name in names
    ]
    sums = read_sums(store.sums(run))
    sums = RunSums(
        round=number,
        closed=sums.closed + 1,
        link_up=sums.link_up + row.up,
        link_down=sums.link_down + row.down,
        whole=sums.whole + len(parts.whole),
        remarks=sums.remarks + summary.remarks,
        returned=sums.returned or _have_trained(pasts),
        **{key: getattr(sums, key) + getattr(parts, key) for key in _SUMMED},
    )
    coded = msgspec.msgpack.encode(parts), msgspec.msgpack.encode(sums)
    return Accounts(run, number, *coded, tuple(histories))


def _traffic(stored: Iterable[TrafficRow], moved: Iterable[TrafficRow]) -> dict[str, TrafficRow]:
    """The bytes of a round's devices; who has fetched the whole model may be stored already."""
    traffic = {row.device: row for row in stored}
    for row in moved:
        before = traffic.get(row.device)
        whole = row.whole or (before is not None and before.whole)
        traffic[row.device] = msgspec.structs.replace(row, whole=whole)
    return dict(sorted(traffic.items()))


_SUMMED = ("up", "down", "newcomer_up", "newcomer_down", "http")


def read_sums(coded: bytes) -> RunSums:
    """From a row; those of a run without a closed round are zero."""
    return msgspec.msgpack.decode(coded, type=RunSums) if coded else RunSums()


def first_return(store: Rows, run: str, devices: Iterable[str]) -> bool:
    """Whether this is the first of a run's rounds with a device that has trained in an earlier one."""
    if read_sums(store.sums(run)).returned:
        return False
    return _have_trained(store.pasts(run, set(devices)))


def _have_trained(pasts: Mapping[str, bytes]) -> bool:
    return any(_read(pasts, name).trained for name in pasts)


def _read(pasts: Mapping[str, bytes], name: str) -> DevicePast:
    coded = pasts.get(name)
    return DevicePast() if coded is None else msgspec.msgpack.decode(coded, type=DevicePast)


@dataclass(frozen=True)
class _Given:
    """The rows of a closed round: who was asked and why some declined, what came, also late, and bytes."""

    summary: Summary
    answers: Mapping[str, str]
    receipts: Sequence[UpdateRow]
    late: Sequence[UpdateRow]
    traffic: Sequence[TrafficRow]


def _parts(given: _Given, pasts: Mapping[str, bytes], http: int) -> RoundParts:
    summary, devices, answers, traffic = (
        given.summary, given.summary.devices, given.answers, given.traffic
    )  # fmt: skip
    came = {part.device for part in devices}
    declined = {name: why for name, why in answers.items() if why and name not in came}
    rejected = {u.device: f"{u.rejected}: {u.detail}" for u in given.receipts if u.rejected}
    new = tuple(name for name in (answers or came) if name not in pasts)  # [keep] may have thinned
    first = [moved for moved in traffic if moved.device in set(new)]
    before, after = ([getattr(part, key) for part in devices] for key in ("before", "after"))
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
        late=tuple(update.device for update in given.late),
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
    """A closed round, to be added to its devices' pasts."""

    row: RoundRow
    parts: RoundParts
    devices: Mapping[str, DeviceSummary]
    took: Mapping[str, float]
    traffic: Mapping[str, TrafficRow]

    def of(self, name: str, past: DevicePast) -> DevicePast:
        """A device's past with this round in it."""
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
            past = _with_update(past, part, self.parts.metric, self.row.task == TRAIN)
        if shortfall is None and part is None:  # it has not answered
            return past
        good = 0 if shortfall is not None else past.good + 1
        lasts = (
            past.shortfall is not None and past.shortfall.kind == "distrusted" and good < FORGIVEN
        )
        kept = shortfall if shortfall is not None or not lasts else past.shortfall
        return msgspec.structs.replace(past, good=good, shortfall=kept)

    def _shortfall(self, name: str) -> Shortfall | None:
        """Why a device's update did not count, or not in full."""
        number, at = self.row.round, self.row.closed
        if name in self.parts.rejected:
            return Shortfall("rejected", number, self.parts.rejected[name], at=at)
        if name in self.parts.distrusted:
            return Shortfall("distrusted", number, counted=self.parts.distrusted[name], at=at)
        if name in self.parts.declined:
            return Shortfall("declined", number, self.parts.declined[name], at=at)
        return None


def _with_update(
    past: DevicePast, part: DeviceSummary, metric: Metric, trained: bool
) -> DevicePast:
    return msgspec.structs.replace(
        past,
        updates=past.updates + 1,
        trained=past.trained + trained,
        metric=metric,
        before=(*past.before, part.before)[-KEPT:],
        after=part.after,
    )


def worst_tenth(values: Sequence[float], metric: Metric = ACCURACY) -> float | None:
    """The mean of the worst tenth, at least of one; None for nothing."""
    count = max(1, round(len(values) / 10))
    worst = sorted(values, key=metric.badness, reverse=True)[:count]
    return sum(worst) / len(worst) if worst else None
