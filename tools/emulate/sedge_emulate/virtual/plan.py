"""Plans what happens to each emulated device, and when, from a seed alone: it has no clock and no state.

    Plan ─ device(number) ─ DevicePlan ─ job_s(run, round, steps)   how long a job takes
                                       ├ events()                  power, cuts, full disks, leaving
                                       └ link   LinkPlan.transit() what happens to one message

Every answer depends only on the seed, the device's number and the arguments, never on earlier calls: each
draw is a hash of its name. So a plan takes a few hundred bytes per device however long the run is, and
the order of calls does not matter. Times are virtual seconds, from 0.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b
from heapq import merge
from itertools import count
from struct import Struct
from typing import NamedTuple, TypeAlias

from sedge_emulate.config import (
    EmulationConfig,
)
from sedge_emulate.device_classes import (
    ChurnConfig,
    ClassConfig,
    DutyConfig,
    LinkConfig,
)

# How long a device is off when it restarts.
REBOOT_S = 5.0
PERFECT = ClassConfig("device")
# Multiples of the golden ratio, modulo 1, fill [0, 1) evenly for any number of devices (Weyl).
_GOLDEN = (math.sqrt(5) - 1) / 2
_EIGHT = Struct("<8Q")

Interval: TypeAlias = tuple[float, float]


class EventKind(Enum):
    """Events that may happen to a device. LEAVE is final, and may occur while the power is off."""

    POWER_ON = auto()
    POWER_OFF = auto()
    LINK_UP = auto()
    LINK_DOWN = auto()
    DISK_FULL = auto()
    DISK_FREE = auto()
    LEAVE = auto()


class PlanEvent(NamedTuple):
    """An event that happens to a device at the time ``at_s``."""

    at_s: float
    kind: EventKind


class Direction(Enum):
    """The direction of a message: up, from a device to the broker, or down, from the broker to a device."""

    UP = "up"
    DOWN = "down"


class Transit(NamedTuple):
    """What happens to one message: the delay in seconds of each copy that arrives; () if it is lost.

    ``corrupted`` says that the copies are damaged.
    """

    copies: tuple[float, ...]
    corrupted: bool


_AT_ONCE = Transit((0.0,), False)
_LOST = Transit((), False)


@dataclass(slots=True)
class Queue:
    """The times until which a device's link is busy, up and down. A new connection gets a new queue."""

    up_s: float = 0.0
    down_s: float = 0.0

    def take(self, direction: Direction, needed_s: float, now: float) -> float:
        """Occupy the link for ``needed_s`` after everything already queued.

        Returns the seconds from ``now`` to the end.
        """
        if direction is Direction.UP:
            self.up_s = max(self.up_s, now) + needed_s
            return self.up_s - now
        self.down_s = max(self.down_s, now) + needed_s
        return self.down_s - now


@dataclass(frozen=True, slots=True)
class _Draws:
    """Draws random numbers by name: the same name always gives the same numbers."""

    key: bytes

    def __call__(self, name: str) -> tuple[float, ...]:
        """Return eight uniform numbers, each above 0 and below 1."""
        digest = blake2b(self.key + name.encode(), digest_size=64).digest()
        return tuple(((bits >> 12) + 0.5) * 2.0**-52 for bits in _EIGHT.unpack(digest))


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """Plans what happens to the messages of one device."""

    config: LinkConfig
    _draws: _Draws

    def transit(
        self, number: int, size_bytes: int, direction: Direction, now: float, queue: Queue
    ) -> Transit:
        """Plan the fate of message ``number`` in this direction, sent now.

        ``size_bytes`` matters only if the link's rate is limited; messages then wait in ``queue``. A
        lost message still takes up time on the link; a duplicate takes up none.
        """
        link = self.config
        if link == _PERFECT_LINK:
            return _AT_ONCE
        is_up = direction is Direction.UP
        kbit_s = link.up_kbit_s if is_up else link.down_kbit_s
        sent_s = queue.take(direction, size_bytes * 0.008 / kbit_s, now) if kbit_s else 0.0
        lost, corrupt, duplicate, first, second, *_ = self._draws(f"{direction.value}/{number}")
        if lost < link.loss:
            return _LOST
        jitters = (first, second) if duplicate < link.duplicate else (first,)
        least_s = sent_s + link.delay_ms / 1000
        copies = tuple(least_s + jitter * link.jitter_ms / 1000 for jitter in jitters)
        return Transit(copies, corrupt < link.corrupt)


_PERFECT_LINK = LinkConfig()


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Plans what happens to one device during the run, and how long its jobs take."""

    number: int
    config: ClassConfig
    link: LinkPlan
    _churn: ChurnConfig
    _draws: _Draws

    @property
    def class_name(self) -> str:
        """The name of the device's class."""
        return self.config.name

    def job_s(self, run: str, round: int, steps: int) -> float:
        """Return how many seconds a job of ``steps`` training steps takes in this round."""
        kind = self.config
        seconds = (kind.start_ms + steps * kind.step_ms) / 1000
        if not kind.jitter and not kind.straggler_share:
            return seconds
        straggler, radius, angle, *_ = self._draws(f"job/{run}/{round}")
        if straggler < kind.straggler_share:
            seconds *= kind.straggler_factor
        normal = math.sqrt(-2 * math.log(radius)) * math.cos(2 * math.pi * angle)  # Box-Muller
        return seconds * math.exp(kind.jitter * normal)

    def events(self) -> Iterator[PlanEvent]:
        """Yield the device's events in chronological order, forever if faults recur.

        The first event is POWER_ON. Power, link and disk alternate independently: a cut or a full disk
        may begin and end while the power is off. At POWER_ON the link is up unless there is a cut.
        """
        power = self._power()
        first = next(power)
        yield first
        kind, link = self.config, self.config.link
        cuts = self._intervals("cut", link.cut_every_s, link.cut_s, first.at_s)
        full = self._intervals("disk", kind.disk_full_every_s, kind.disk_full_s, first.at_s)
        events = merge(
            power,
            _changes(cuts, EventKind.LINK_DOWN, EventKind.LINK_UP),
            _changes(full, EventKind.DISK_FULL, EventKind.DISK_FREE),
            key=lambda event: event.at_s,
        )
        leave_every_s = self._churn.leave_every_s
        if not leave_every_s:
            yield from events
            return
        leave_s = first.at_s + _exponential(leave_every_s, self._draws("leave")[0])
        for event in events:
            if event.at_s >= leave_s:
                break
            yield event
        yield PlanEvent(leave_s, EventKind.LEAVE)

    def _power(self) -> Iterator[PlanEvent]:
        """Yield POWER_ON, then POWER_OFF and POWER_ON for each period without power."""
        join, phase, *_ = self._draws("join")
        join_s = join * self._churn.join_within_s
        duty = self.config.duty
        off = _nights(duty, phase, join_s) if duty else iter(())
        reboots = self._intervals("reboot", self.config.reboot_every_s, 0.0, join_s)
        restarts = ((begin_s, begin_s + REBOOT_S) for begin_s, _ in reboots)
        changes = _changes(_united(merge(off, restarts)), EventKind.POWER_OFF, EventKind.POWER_ON)
        on_s = join_s
        for event in changes:
            if event.kind is EventKind.POWER_OFF and event.at_s > join_s:
                yield PlanEvent(on_s, EventKind.POWER_ON)
                yield event
                yield from changes
                return
            if event.kind is EventKind.POWER_ON:
                on_s = max(on_s, event.at_s)
        yield PlanEvent(on_s, EventKind.POWER_ON)

    def _intervals(
        self, name: str, every_s: float, lasting_s: float, from_s: float
    ) -> Iterator[Interval]:
        """Yield the intervals of the named fault, without end; yields nothing if ``every_s`` is 0."""
        end_s = from_s
        for number in count() if every_s else ():
            wait, length, *_ = self._draws(f"{name}/{number}")
            begin_s = end_s + _exponential(every_s, wait)
            end_s = begin_s + _exponential(lasting_s, length)
            yield begin_s, end_s


class Plan:
    """Plans a whole fleet: draws each device's class and faults."""

    def __init__(self, config: EmulationConfig, seed: int) -> None:
        self._classes = config.classes or (PERFECT,)
        self._churn = config.churn
        self._seed = seed
        self._total = sum(kind.share for kind in self._classes)
        self._offset = _draws_of(seed, "classes")("")[0]

    def device(self, number: int) -> DevicePlan:
        """Return the plan for device ``number``, counted from 0."""
        draws = _draws_of(self._seed, f"device/{number}")
        kind = self._class_of(number)
        return DevicePlan(number, kind, LinkPlan(kind.link, draws), self._churn, draws)

    @property
    def quiet(self) -> bool:
        """True if there are no faults.

        Then no message is lost, damaged or duplicated, no disk fills up, and every device is online from
        start to end. Links and jobs may still be slow.
        """
        steady = self._churn == ChurnConfig()
        return steady and not any(_is_faulty(kind) for kind in self._classes)

    @property
    def away_s(self) -> float:
        """An upper bound on the seconds for which all devices may be offline at once.

        It is the time in which devices join plus the longest duty period.
        """
        periods = (kind.duty.period_s for kind in self._classes if kind.duty)
        return self._churn.join_within_s + max(periods, default=0.0)

    def _class_of(self, number: int) -> ClassConfig:
        """Return the class of device ``number``.

        Classes are interleaved, so that small fleets contain every class.
        """
        at = (self._offset + number * _GOLDEN) % 1 * self._total
        for kind in self._classes:
            at -= kind.share
            if at < 0:
                return kind
        return self._classes[-1]  # reached only through rounding errors


def _is_faulty(kind: ClassConfig) -> bool:
    link = kind.link
    power = kind.reboot_every_s or kind.duty
    return bool(
        link.loss
        or link.corrupt
        or link.duplicate
        or link.cut_every_s
        or kind.disk_full_every_s
        or power
    )


def _draws_of(seed: int, name: str) -> _Draws:
    return _Draws(blake2b(f"{seed}/{name}".encode(), digest_size=16).digest())


def _exponential(mean: float, uniform: float) -> float:
    return -mean * math.log(uniform)


def _nights(duty: DutyConfig, phase: float, from_s: float) -> Iterator[Interval]:
    """Yield the intervals without power, starting with one that begins before ``from_s``.

    Day n of the device begins at n - ``phase`` periods. The device is on for the first ``duty.on_s``
    seconds.
    """
    if duty.on_s < duty.period_s:
        for day in count(math.floor(from_s / duty.period_s + phase) - 1):
            begin_s = (day - phase) * duty.period_s
            yield begin_s + duty.on_s, begin_s + duty.period_s


def _united(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Merge intervals that overlap or touch. They must be sorted by start time."""
    begin_s = end_s = -math.inf
    for next_begin_s, next_end_s in intervals:
        if next_begin_s > end_s:
            if end_s > -math.inf:
                yield begin_s, end_s
            begin_s = next_begin_s
        end_s = max(end_s, next_end_s)
    if end_s > -math.inf:
        yield begin_s, end_s


def _changes(
    intervals: Iterable[Interval], begins: EventKind, ends: EventKind
) -> Iterator[PlanEvent]:
    for begin_s, end_s in intervals:
        yield PlanEvent(begin_s, begins)
        yield PlanEvent(end_s, ends)
