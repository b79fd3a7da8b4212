"""Short summaries for the page, computed from the facts: trend, cost, the last day."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sedge_cloud.facts.devices import counted
from sedge_cloud.facts.records import (
    DeviceFacts,
    Fleet,
    PrivacyFacts,
    Problem,
    RolloutFacts,
    RoundFacts,
    RunFacts,
)
from sedge_cloud.figures.numbers import change, natural, quantity, some_of

DAY, MONTH = timedelta(days=1), timedelta(days=30)
# The trend compares the last round with the one BACK rounds earlier; a difference below LEVEL means no
# change.
BACK, LEVEL = 5, 0.01
# A device is called slow if its training takes this many times as long as the fleet's median.
SLOW_TIMES = 3.0
# If there are more problems of one kind than this, all but the first are folded below the first.
MAX_ALIKE = 4
# An event names at most this many devices.
MAX_NAMED = 6
# The problems that must be fixed before an upgrade.
_UNSAFE = ("disk_full", "disk_low", "coordinator_error", "broker_down")


@dataclass(frozen=True)
class Trend:
    """A run's metric before training, and its trend: ``sign`` is positive for better, 0 for level."""

    value: float
    last: RoundFacts
    text: str
    sign: int


def trend(run: RunFacts) -> Trend | None:
    """Return a run's trend; None before its first round."""
    known = [(r.before, r) for r in run.rounds if r.before is not None]
    if not known:
        return None
    now, last = known[-1]
    before, first = known[-1 - min(BACK, len(known) - 1)]
    if last is first:
        return Trend(now, last, "after its first round", 0)
    better = last.metric.badness(before) - last.metric.badness(now)
    scale = 1.0 if last.metric.share else abs(before) or 1.0
    sign = 0 if abs(better) < LEVEL * scale else (1 if better > 0 else -1)
    words = {1: "▲ learns", 0: "▬ level", -1: "▼ gets worse"}[sign]
    moved, rounds = change(now - before, last.metric), last.round - first.round
    return Trend(now, last, f"{words}: {moved} in {quantity(rounds, 'round')}", sign)


def month_bytes(facts: Fleet) -> tuple[int, bool]:
    """Return all devices' bytes in rounds closed in the last 30 days, and whether the sum is complete."""
    since = facts.at - MONTH
    total = sum(run.sums.up + run.sums.down for run in facts.runs if _began(run, since))
    older = [_recent(run, since) for run in facts.runs if not _began(run, since)]
    total += sum(r.up + r.down for rounds, _ in older for r in rounds)
    return total, all(complete for _, complete in older)


def closed_in_a_day(facts: Fleet) -> tuple[int, bool]:
    """Return how many rounds closed in the last 24 hours, and whether all were counted."""
    since = facts.at - DAY
    count = sum(run.closed_rounds for run in facts.runs if _began(run, since))
    older = [_recent(run, since) for run in facts.runs if not _began(run, since)]
    return count + sum(len(rounds) for rounds, _ in older), all(complete for _, complete in older)


def _began(run: RunFacts, since: datetime) -> bool:
    """Return True if a run started after ``since``, so its sums cover exactly the rounds since then."""
    return run.created is not None and run.created >= since


def _recent(run: RunFacts, since: datetime) -> tuple[Sequence[RoundFacts], bool]:
    """Return the rounds that closed after ``since``, and whether these are all of them."""
    recent = [r for r in run.rounds if r.closed is not None and r.closed >= since]
    return recent, len(recent) < len(run.rounds) or len(run.rounds) == run.closed_rounds


def unsafe(facts: Fleet) -> list[str]:
    """Return the problems to fix before an upgrade."""
    return [f"{p.subject} {p.text}" for p in facts.problems if p.code in _UNSAFE]


def folded(problems: Sequence[Problem]) -> list[tuple[Problem, list[Problem]]]:
    """Group problems, keeping their order. Each comes with the problems of its kind folded below it.

    Problems are only folded if there are many of one kind.
    """
    alike: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in problems:
        alike.setdefault((problem.code, problem.severity, problem.run), []).append(problem)
    found: list[tuple[Problem, list[Problem]]] = []
    for kind in alike.values():  # dicts keep the order in which kinds first appeared
        if len(kind) > MAX_ALIKE:
            found.append((kind[0], kind[1:]))
        else:
            found += ((problem, []) for problem in kind)
    return found


def groups(run: RunFacts) -> list[tuple[list[str], list[str]]]:
    """Return pairs (devices, the partners that they share), the largest group of devices first."""
    sets: dict[frozenset[str], list[str]] = {}
    for device, others in run.groups.items():
        sets.setdefault(frozenset((device, *others)), []).append(device)
    found = [
        (sorted(members, key=natural), sorted(whole.difference(members), key=natural))
        for whole, members in sets.items()
    ]
    return sorted(found, key=lambda row: (-len(row[0]), natural(row[0][0])))


def budget(it: PrivacyFacts) -> str:
    """Describe a private run's budget in one line."""
    return (
        f"Privacy: {it.spent:,} of {quantity(it.rounds, 'round')} of training spent, "
        f"{it.rounds - it.spent:,} left. "
        f"All rounds together spend at most epsilon {it.epsilon:g} at delta {it.delta:g}."
    )


def rollout(it: RolloutFacts) -> str:
    """Describe a rollout's progress in one line."""
    why = f": {it.why}" if it.why else ""
    awaited = f" ({some_of(it.awaited, it.waiting)})" if it.awaited else ""
    return (
        f"Rollout {it.number} of {it.bundle} ({it.sha256[:8]}) is {it.state.replace('_', ' ')}{why}. "
        f"Phase {it.phase} of {it.phases}, {100 * it.share:g} %"
        f"{f' of those with {it.where}' if it.where else ''}: of {quantity(it.devices, 'device')} "
        f"{it.succeeded:,} succeeded, {it.failed:,} failed, {it.waiting:,} waiting{awaited}."
    )


def pace(device: DeviceFacts, devices: Sequence[DeviceFacts]) -> str:
    """Compare a device's training time with the fleet's median. Returns "" if a time is unknown."""
    known = [d.seconds for d in devices if d.seconds is not None]
    if device.seconds is None or not known:
        return ""
    median = statistics.median(known)
    times = device.seconds / median if median > 0 else 1.0
    text = f"the fleet's median is {median:.1f} s"
    if times < SLOW_TIMES:
        return text
    text = f"{times:.1f} times as long: {text}"
    if not device.num_train:
        return text
    usual = statistics.median([d.num_train for d in devices if d.num_train])
    return (
        f"{text}; it has {device.num_train / usual:.1f} times the fleet's median number of examples"
    )


def part_in(device: str, it: RoundFacts) -> str:
    """Describe what was unusual about a device in a round. Returns "" if nothing was."""
    said = [f"declined: {it.declined[device]}"] if device in it.declined else []
    said += [f"rejected: {it.rejected[device]}"] if device in it.rejected else []
    if device in it.distrusted:
        said.append(f"distrusted: counted {counted(it.distrusted[device])}")
    lists: Mapping[str, Sequence[str]] = {
        "sent no update": it.missing,
        "first round": it.newcomers,
        "fetched the whole model": it.whole,
        "sent an update for an earlier round": it.late,
    }
    said += [text for text, names in lists.items() if device in names]
    return "; ".join(said)


@dataclass(frozen=True)
class FleetEvent:
    """An event in the fleet's history; it has ``run`` and ``round`` if it is about a round."""

    at: datetime
    text: str
    run: str = ""
    round: int = 0


def last_day(facts: Fleet) -> list[FleetEvent]:
    """Return the events of the last 24 hours, latest first, with repeated ones combined.

    Events concern runs, rollouts, unusual rounds and devices.
    """
    found = [event for event in _events(facts) if facts.at - event.at <= DAY]
    alike: dict[tuple[str, str], list[FleetEvent]] = {}
    for event in sorted(found, key=lambda event: event.at, reverse=True):
        alike.setdefault((event.run, event.text), []).append(event)
    return [_once(events) for events in alike.values()]


def _once(events: Sequence[FleetEvent]) -> FleetEvent:
    """Combine events with the same text into the latest one, saying how many came before."""
    last, others = events[0], len(events) - 1
    if not others:
        return last
    return replace(last, text=f"{last.text} (and {quantity(others, 'time')} before)")


def _events(facts: Fleet) -> Iterator[FleetEvent]:
    for run in facts.runs:
        if run.created is not None:
            yield FleetEvent(run.created, f"run {run.run} started with {run.strategy}")
        if run.ended is not None:
            why = f": {run.why}" if run.why else ""
            yield FleetEvent(run.ended, f"run {run.run} is {run.status}{why}")
        yield from _of_rollout(run.rollout, f"run {run.run}")
        for it in run.rounds:
            text = out_of_the_ordinary(it)
            if it.closed is not None and text:
                yield FleetEvent(it.closed, text, run.run, it.round)
    yield from _of_rollout(facts.settings, "settings")
    # Devices are grouped by the hour, because they are often enrolled together.
    enrolled = defaultdict[datetime, dict[str, datetime]](dict)
    for device in facts.devices:
        if device.enrolled is not None:
            hour = device.enrolled.replace(minute=0, second=0, microsecond=0)
            enrolled[hour][device.device] = device.enrolled
        if device.state == "offline" and device.since is not None:
            yield FleetEvent(device.since, f"{device.device} went offline")
        if device.state == "paused" and device.since is not None:
            yield FleetEvent(device.since, f"{device.device} was paused")
        if device.error and device.error_since is not None:
            yield FleetEvent(device.error_since, f"{device.device}: {device.error}")
    for came in enrolled.values():
        yield FleetEvent(max(came.values()), f"enrolled: {_named(came)}")


def _of_rollout(it: RolloutFacts | None, of: str) -> Iterator[FleetEvent]:
    if it is None:
        return
    name = f"rollout {it.number} of {it.bundle} to {of}"
    if it.created is not None:
        yield FleetEvent(it.created, f"{name} began")
    if it.ended is not None:
        why = f": {it.why}" if it.why else ""
        yield FleetEvent(it.ended, f"{name} is {it.state.replace('_', ' ')}{why}")


def out_of_the_ordinary(it: RoundFacts) -> str:
    """Describe what was unusual about a round. Returns "" if nothing was."""
    parts = (
        ("new", it.newcomers if it.round > 1 else ()),
        ("no update from", it.missing),
        ("declined", it.declined),
        ("rejected", it.rejected),
        ("distrusted", it.distrusted),
        ("whole model again for", it.whole),
    )
    said = [f"{what}: {_named(names)}" for what, names in parts if names]
    return "; ".join([*said, *([it.failure] if it.failure else [])])


def _named(names: Sequence[str] | Mapping[str, object]) -> str:
    ordered = sorted(names, key=natural)
    return some_of(ordered[:MAX_NAMED], len(ordered))
