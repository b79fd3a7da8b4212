"""Carries out rollouts of bundles: decides whether a rollout continues.

Before a round is planned, the leader compares the answers of devices with the new bundle with the answers
of devices that had another bundle in the same rounds. A device that fails goes back to its previous bundle
with its next order, whatever the outcome of the rollout.
"""

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from heapq import nsmallest

import msgspec

from sedge_cloud.figures.numbers import natural
from sedge_cloud.runs.rollout_versions import rank
from sedge_cloud.runs.run import Run
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rollouts import (
    RolloutPlan,
    RolloutProgress,
    RolloutRow,
    Tried,
    read,
)
from sedge_cloud.store.rows import LATE_ROUNDS
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.update import Metrics

# How many rounds before a rollout are searched for devices' earlier metrics. Together with the rounds that
# may still get late answers, these are fewer than the minimum of `[keep] rounds`.
EARLIER_ROUNDS = 5
# A device has failed once it has left this many orders with the new bundle unanswered.
MAX_SILENT = 3
NO_ANSWER = "no answer"
# At most this many of the devices that a rollout is waiting for are listed by name.
MAX_NAMED = 4
# Reasons for declines and rejections that say nothing about a bundle: the device's own limits, its link, or
# its revocation, and updates that came too late or were lost by the coordinator's disk.
NOT_THE_BUNDLES = frozenset(
    {"MessageTooLarge", "TooManyOrders", "TooManyRuns", "revoked", "stale", "lost"}
)


class Responses(msgspec.Struct):
    """The answers of devices with one bundle: which devices succeeded, and why the others failed.

    ``silent`` counts each device's unanswered orders. ``asked`` maps a device to the last round in which it
    had an order but gave no answer that says anything about the bundle. ``first`` and ``last`` map a device
    to its metric before and after training, from its first and last report.
    """

    succeeded: set[str] = set()
    failed: dict[str, str] = {}
    silent: dict[str, int] = {}
    asked: dict[str, int] = {}
    first: dict[str, tuple[float, float]] = {}
    last: dict[str, tuple[float, float]] = {}

    @property
    def share(self) -> float:
        """Return the share of failed devices among all devices that have failed or succeeded."""
        return len(self.failed) / max(1, len(self.failed) + len(self.succeeded))

    def fail(self, device: str, why: str) -> None:
        """Record that a device has failed, even if it had succeeded before."""
        self.failed[device] = why
        self.succeeded.discard(device)


class Tally(msgspec.Struct):
    """The outcomes of devices with the new bundle, and of other devices, since a rollout's first round."""

    new: Responses = msgspec.field(default_factory=Responses)
    others: Responses = msgspec.field(default_factory=Responses)

    def changes(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Return how each device's metrics before and after training have changed, for both groups."""
        was, new, others = self.others, self.new.last, self.others.last
        return (
            [_change(was.last[device], new[device]) for device in new if device in was.last],
            [_change(was.first[device], others[device]) for device in others if device not in new],
        )


def _change(was: tuple[float, float], now: tuple[float, float]) -> tuple[float, float]:
    return now[0] - was[0], now[1] - was[1]


class _Scores(msgspec.Struct):
    before: Metrics
    after: Metrics


def add(tally: Tally, bundle: bytes, orders: Iterable[Tried], since: int, measured: bool) -> None:
    """Add the devices' answers to the tally and, if ``measured``, their metrics.

    Metrics are also taken from rounds before ``since``. The orders must be later than all those already
    tallied. ``bundle`` is the new bundle.
    """
    for order in orders:
        group = tally.new if order.bundle == bundle else tally.others
        device, why = order.device, order.declined or order.rejected
        if measured and order.report and not why:
            scores = msgspec.msgpack.decode(order.report, type=_Scores)
            group.last[device] = scores.before.metric, scores.after.metric
            group.first.setdefault(device, group.last[device])
        if order.round < since:
            continue
        if why and why.partition(":")[0] not in NOT_THE_BUNDLES:
            group.fail(device, why)
        elif order.report and not why:
            if device not in group.failed:
                group.succeeded.add(device)
        else:
            group.asked[device] = order.round
            if not why and not order.open:
                group.silent[device] = group.silent.get(device, 0) + 1
                if group.silent[device] >= MAX_SILENT and device not in group.succeeded:
                    group.fail(device, NO_ANSWER)


def tallied(
    row: RolloutRow, store: Rows, closed: int, measured: bool = False
) -> tuple[RolloutProgress, Tally]:
    """Return the updated progress, and the tally up to round ``closed``.

    The progress stores the tally of older rounds. The last rounds may still get answers, so their orders
    are read again the next time.
    """
    progress = row.read_progress()
    tally = read(row, progress.tally, Tally) if progress.tally else Tally()
    first, settled = progress.first_round, closed - LATE_ROUNDS
    begin = max(progress.tallied, first - EARLIER_ROUNDS - 1) + 1
    add(tally, row.bundle, store.tried(row.run, begin, settled), first, measured)
    if settled >= begin:
        coded = msgspec.msgpack.encode(tally)
        progress = msgspec.structs.replace(progress, tallied=settled, tally=coded)
    rest = store.tried(row.run, max(begin, settled + 1), closed)
    add(tally, row.bundle, rest, first, measured)
    return progress, tally


def in_progress(store: Rows, run: str) -> RolloutRow | None:
    """Return a run's rollout that is in progress, or None."""
    return next((row for row in store.rollouts(run) if row.state == "in_progress"), None)


def advance(run: Run, store: Rows, at: float) -> Iterator[Note]:
    """Start the next phase of the run's rollout, or end it, if that is due. Yields notes about it."""
    row = in_progress(store, run.name)
    if row is None:
        return
    # Metrics that a private run withholds are not reported here either, and do not influence the rollout.
    measured = run.manifest.metric.share and not run.config.withholds
    progress, tally = tallied(row, store, run.state.round, measured)
    devices = store.eligible(row.read_plan().where)
    evidence = Evidence(devices, tally, run.state.round + 1, run.manifest.metric.name)
    yield from proceed(row, progress, evidence, store, at)


@dataclass(frozen=True)
class Evidence:
    """The facts for a decision on a rollout: the ``devices`` that it covers, and their outcomes.

    ``round`` is the next round, and ``metric`` the name of the run's metric. The failed devices in ``kept``
    do not go back to their previous version.
    """

    devices: Collection[str]
    tally: Tally
    round: int
    metric: str = ""
    kept: Set[str] = frozenset()


def proceed(
    row: RolloutRow, progress: RolloutProgress, evidence: Evidence, store: Rows, at: float
) -> Iterator[Note]:
    """Start a rollout's next phase, or end the rollout, if that is due. Raises ``StorageError``."""
    plan, tally, new = row.read_plan(), evidence.tally, evidence.tally.new
    reasons = {device: why for device, why in new.failed.items() if device not in evidence.kept}
    failed = tuple(sorted({*progress.failed, *reasons}))
    progress = msgspec.structs.replace(
        progress,
        failed=failed,
        reasons={**progress.reasons, **reasons},
        succeeded=len(new.succeeded),
    )
    reachable = set[str]()
    if _added(progress) < plan.min_devices:
        newest = members(row, progress, evidence.devices)
        reachable = newest - absent(row, progress, store, newest, new, at)
    why = fault(evidence.metric, plan, _needed(plan, progress, reachable), tally)
    if why:
        row, text = msgspec.structs.replace(row, state="aborted", why=why), f"aborted: {why}"
    elif not _is_through(row, plan, progress, new, at, reachable.difference(failed)):
        text = ""
    elif progress.phase + 1 == len(plan.phases):
        row, text = msgspec.structs.replace(row, state="succeeded"), "succeeded"
    else:
        progress = next_phase(row, plan, progress, evidence, at)
        share = plan.phases[progress.phase]
        text = f"phase {progress.phase + 1}, {100 * share:g} %: {progress.sizes[-1]} devices"
    if row.state != "in_progress":
        # The tally is no longer needed, and takes 8.7 MB for 100,000 devices.
        progress = msgspec.structs.replace(progress, ended=at, tally=b"", awaited=())
    else:
        progress = _with_awaited(row, progress, evidence)
    coded = msgspec.msgpack.encode(progress)
    if coded == row.progress and not text:
        return
    if store.save_rollout(msgspec.structs.replace(row, progress=coded)) and text:
        where = (
            f"run {row.run}, rollout {row.number}" if row.run else f"settings, rollout {row.number}"
        )
        yield Note(logging.WARNING, f"{where}: {text}")


def next_phase(
    row: RolloutRow, plan: RolloutPlan, progress: RolloutProgress, evidence: Evidence, at: float
) -> RolloutProgress:
    """Return a rollout's progress at the start of its next phase, which has at least one device."""
    devices = evidence.devices
    phase = len(progress.bounds)
    ranks = sorted(rank(row, device) for device in devices)
    size = min(len(ranks), max(1, math.ceil(round(plan.phases[phase] * len(ranks), 6))))
    # The last phase covers all ranks, so devices that join during it get the new bundle as well.
    bound = 2**63 - 1 if plan.phases[phase] >= 1 else ranks[size - 1] if ranks else -1
    progress = msgspec.structs.replace(
        progress,
        since=at,
        phase=phase,
        phase_round=evidence.round,
        bounds=(*progress.bounds, bound),
        sizes=(*progress.sizes, size),
    )
    return _with_awaited(row, progress, evidence)


def awaited(
    row: RolloutRow, progress: RolloutProgress, devices: Iterable[str], new: Responses
) -> list[str]:
    """Return which of the ``devices`` are in the rollout and have neither succeeded nor failed."""
    known = {*progress.failed, *new.failed, *new.succeeded}
    names = (name for name in devices if name not in known)
    return [name for name in names if rank(row, name) <= progress.bounds[-1]]


def _with_awaited(
    row: RolloutRow, progress: RolloutProgress, evidence: Evidence
) -> RolloutProgress:
    names = nsmallest(
        MAX_NAMED, awaited(row, progress, evidence.devices, evidence.tally.new), key=natural
    )
    return msgspec.structs.replace(progress, awaited=tuple(names))


def members(row: RolloutRow, progress: RolloutProgress, devices: Iterable[str]) -> set[str]:
    """Return which of ``devices`` the current phase has added."""
    before, last = (-1, *progress.bounds)[-2:]
    return {name for name in devices if before < rank(row, name) <= last}


def away(store: Rows, devices: Set[str], since: float) -> set[str]:
    """Return which of ``devices`` are paused, or offline and silent since ``since`` (wall clock)."""
    sessions = store.sessions_named(devices)
    near = {one.device for one in sessions if one.online or one.heard > since}
    return {*devices} - (near - store.paused().keys())


def absent(
    row: RolloutRow,
    progress: RolloutProgress,
    store: Rows,
    newest: Set[str],
    new: Responses,
    at: float,
) -> set[str]:
    """Return which of the ``newest`` devices a small phase does not wait for.

    They are ``away``, or have no outcome because they had no order in the last rounds: other devices were
    drawn, or they are waiting or lack a feature.
    """
    found = away(store, newest, at - row.read_plan().hold_s)
    if row.run and progress.tallied >= progress.phase_round:
        waiting = newest - new.succeeded - new.failed.keys()
        found |= {device for device in waiting if new.asked.get(device, 0) < progress.tallied}
    return found


def _added(progress: RolloutProgress) -> int:
    """Return how many devices the phase added when it began."""
    return progress.sizes[-1] - (progress.sizes[-2] if len(progress.sizes) > 1 else 0)


def _needed(plan: RolloutPlan, progress: RolloutProgress, reachable: Set[str]) -> int:
    """Return how many devices must succeed before the next phase, or answer before an abort."""
    return plan.min_devices if _added(progress) >= plan.min_devices else max(1, len(reachable))


def _is_through(
    row: RolloutRow,
    plan: RolloutPlan,
    progress: RolloutProgress,
    new: Responses,
    at: float,
    reachable: Set[str],
) -> bool:
    """Return True if the phase has lasted long enough and enough of the devices it added have succeeded."""
    if at < progress.since + plan.hold_s:
        return False
    succeeded = len(members(row, progress, new.succeeded))
    return _added(progress) == 0 or succeeded >= _needed(plan, progress, reachable)


def fault(metric: str, plan: RolloutPlan, needed: int, tally: Tally) -> str:
    """Return the reason to abort a rollout, or "" if it is healthy. ``metric`` is the metric's name."""
    new, others = tally.new, tally.others
    through = len(new.failed) + len(new.succeeded)
    if through >= needed and new.share > plan.abort_at + others.share:
        reasons = sorted(new.failed.values())
        common = max(set(reasons), key=reasons.count)
        return (
            f"{len(new.failed)} of {through} devices failed ({common!r}), compared with "
            f"{len(others.failed)} of {len(others.failed) + len(others.succeeded)} others"
        )
    groups = tally.changes()
    if min(map(len, groups)) < needed:
        return ""
    for place, when in enumerate(("before", "after")):
        change, usual = (sum(one[place] for one in group) / len(group) for group in groups)
        if change < usual - plan.worse_by:
            return (
                f"{metric} {when} training changed by {change:+.3f} on "
                f"{len(groups[0])} devices, but on {len(groups[1])} others by {usual:+.3f}"
            )
    return ""
