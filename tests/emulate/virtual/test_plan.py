"""The plan of faults and time: it makes sense, has the chances asked for, and says the same each time."""

import math
from collections import Counter
from collections.abc import Iterable
from itertools import islice, pairwise, takewhile

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.random import default_rng

from sedge_emulate.config import EmulationConfig, StrategyConfig
from sedge_emulate.device_classes import ChurnConfig, ClassConfig, DutyConfig, LinkConfig
from sedge_emulate.virtual.plan import (
    REBOOT_S,
    DevicePlan,
    Direction,
    EventKind,
    Plan,
    PlanEvent,
    Queue,
    Transit,
)

UP, DOWN = Direction.UP, Direction.DOWN
# Which event begins what, and which ends it; each pair alternates on its own.
PAIRS = {
    "power": (EventKind.POWER_ON, EventKind.POWER_OFF),
    "link": (EventKind.LINK_DOWN, EventKind.LINK_UP),
    "disk": (EventKind.DISK_FULL, EventKind.DISK_FREE),
}


def plan(*classes: ClassConfig, seed: int = 1, churn: ChurnConfig | None = None) -> Plan:
    config = EmulationConfig(strategies=(StrategyConfig("fedavg"),), classes=classes)
    return Plan(replace(config, churn=churn or ChurnConfig()), seed)


def linked(**link: float) -> DevicePlan:
    return plan(ClassConfig("linked", link=LinkConfig(**link))).device(0)


def transits(device: DevicePlan, number: int, size: int = 1) -> list[Transit]:
    queue = Queue()
    return [device.link.transit(i, size, UP, float(i), queue) for i in range(number)]


def a_class(seed: int) -> ClassConfig:
    """Every fault, or only some; means from seconds to hours, so that they overlap in all ways."""
    rng = default_rng(seed)

    def seconds() -> float:
        return float(10 ** rng.uniform(0.1, 4))

    def maybe() -> bool:
        return bool(rng.random() < 0.7)

    kind = ClassConfig("any")
    if maybe():
        kind = replace(kind, reboot_every_s=seconds())
    if maybe():
        kind = replace(kind, disk_full_every_s=seconds(), disk_full_s=seconds())
    if maybe():
        kind = replace(kind, link=LinkConfig(cut_every_s=seconds(), cut_s=seconds()))
    if maybe():
        period_s = 10 + seconds()
        kind = replace(kind, duty=DutyConfig(period_s, float(rng.uniform(1, period_s))))
    return kind


def some_churn(seed: int) -> ChurnConfig:
    join_s, leave_s = ((0, 0), (500, 0), (0, 5000), (20_000, 300))[seed % 4]
    return ChurnConfig(join_s, leave_s)


def require_sense(events: list[PlanEvent]) -> None:
    """Starts with power, in order of time, each pair in turns, nothing after LEAVE."""
    assert events[0].kind is EventKind.POWER_ON
    assert all(a.at_s <= b.at_s for a, b in pairwise(events))
    kinds = [event.kind for event in events]
    assert EventKind.LEAVE not in kinds[:-1]
    for pair in PAIRS.values():
        turns = [kind for kind in kinds if kind in pair]
        assert turns == [pair[i % 2] for i in range(len(turns))]


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_mixed_makes_sense(seed: int) -> None:
    churn = some_churn(seed)
    device = plan(a_class(seed), seed=seed, churn=churn).device(seed)
    events = list(islice(device.events(), 400))
    require_sense(events)
    if churn.leave_every_s:
        whole = list(islice(device.events(), 100_000))
        assert whole[-1].kind is EventKind.LEAVE
        assert whole[-1].at_s > events[0].at_s
    on = [event for event in events if event.kind in PAIRS["power"]]
    for before, after in pairwise(on):
        assert after.at_s > before.at_s


@pytest.mark.parametrize("seed", range(50))
def test_power_is_the_duty_cycle_less_the_reboots(seed: int) -> None:
    """Against a slow twin: is there power at this moment?"""
    kind = replace(a_class(seed), duty=DutyConfig(600.0, 200.0 + 7 * seed), reboot_every_s=300.0)
    only_duty, only_reboots, both = (
        list(takewhile(lambda event: event.at_s <= 5000, plan(one, seed=seed).device(3).events()))
        for one in (replace(kind, reboot_every_s=0.0), replace(kind, duty=None), kind)
    )
    for at_s in default_rng(seed).uniform(0, 5000, 50):
        expected = powered(only_duty, at_s) and powered(only_reboots, at_s)
        assert powered(both, at_s) == expected, at_s


def powered(events: Iterable[PlanEvent], at_s: float) -> bool:
    on = False
    for event in events:
        if event.at_s > at_s:
            return on
        on = {EventKind.POWER_ON: True, EventKind.POWER_OFF: False}.get(event.kind, on)
    return on


def test_a_perfect_device_is_there_and_nothing_else() -> None:
    for found in (plan().device(7), plan(ClassConfig("mains")).device(7)):
        assert list(found.events()) == [PlanEvent(0.0, EventKind.POWER_ON)]
        queue = Queue()
        assert found.link.transit(0, 10**9, UP, 5.0, queue) == Transit((0.0,), False)
        assert queue == Queue()
        assert found.job_s("run", 1, 100) == 2.0
    assert plan().device(7).class_name == "device"
    assert plan(ClassConfig("mains")).device(7).class_name == "mains"


def test_the_order_of_questions_changes_nothing() -> None:
    link = LinkConfig(loss=0.2, corrupt=0.2, duplicate=0.2, jitter_ms=9)
    shaky = replace(a_class(4), name="shaky", jitter=0.5, share=3.0, link=link)
    kinds = (ClassConfig("steady", link=link), shaky)

    def asked(numbers: Iterable[int]) -> dict[int, object]:
        found = plan(*kinds, churn=ChurnConfig(100, 1e6))
        devices = {number: found.device(number) for number in numbers}
        streams = {number: device.events() for number, device in devices.items()}
        events: dict[int, list[PlanEvent | None]] = {number: [] for number in devices}
        for _ in range(20):  # all devices at once, one event each
            for number, stream in streams.items():
                events[number].append(next(stream, None))
        said = {n: (d.class_name, d.job_s("r", 3, 10), transits(d, 30)) for n, d in devices.items()}
        return {number: (events[number], said[number]) for number in devices}

    forwards, backwards = asked(range(12)), asked(reversed(range(12)))
    assert forwards == backwards
    assert asked([5])[5] == forwards[5]
    assert len({str(answers) for answers in forwards.values()}) == 12  # and no two alike


def test_another_seed_is_another_plan() -> None:
    kind = replace(a_class(11), jitter=0.5, link=LinkConfig(jitter_ms=100))
    first, second = (plan(kind, seed=seed).device(0) for seed in (1, 2))
    assert first.job_s("run", 1, 10) != second.job_s("run", 1, 10)
    assert transits(first, 3) != transits(second, 3)


# Devices over time.


def test_a_duty_cycle_is_kept_and_each_device_has_its_own_phase() -> None:
    found = plan(ClassConfig("solar", duty=DutyConfig(3600, 900)))
    starts: list[float] = []
    for number in range(40):
        events = list(islice(found.device(number).events(), 21))
        assert {event.kind for event in events} == set(PAIRS["power"])
        lengths = [b.at_s - a.at_s for a, b in pairwise(events)]
        # The first day may have begun before the emulation did.
        assert lengths[0] < 900.001
        assert np.allclose(lengths[1::2], 2700)
        assert np.allclose(lengths[2::2], 900)
        starts.append(events[0].at_s)
    assert 0.1 < np.mean(np.array(starts) == 0) < 0.45  # a quarter of them have power at the start
    assert max(starts) < 2700
    assert len(set(starts)) > 20


def test_a_whole_day_of_power_is_no_duty_cycle() -> None:
    device = plan(ClassConfig("mains", duty=DutyConfig(3600, 3600))).device(0)
    assert list(device.events()) == [PlanEvent(0.0, EventKind.POWER_ON)]


def test_reboots_take_a_moment_and_come_as_often_as_asked() -> None:
    device = plan(ClassConfig("pi", reboot_every_s=1000)).device(0)
    events = list(islice(device.events(), 4001))
    off = [b.at_s - a.at_s for a, b in pairwise(events) if a.kind is EventKind.POWER_OFF]
    assert min(off) == pytest.approx(REBOOT_S)
    assert 900 < events[-1].at_s / 2000 < 1100


def test_cuts_and_full_disks_have_the_means_that_were_asked_for() -> None:
    link = LinkConfig(cut_every_s=600, cut_s=60)
    kind = ClassConfig("pi", link=link, disk_full_every_s=300, disk_full_s=900)
    events = list(islice(plan(kind).device(0).events(), 8000))
    for name, begins, ends, wait_s, length_s in (
        ("link", EventKind.LINK_DOWN, EventKind.LINK_UP, 600, 60),
        ("disk", EventKind.DISK_FULL, EventKind.DISK_FREE, 300, 900),
    ):
        turns = [event for event in events if event.kind in PAIRS[name]]
        waits = [b.at_s - a.at_s for a, b in pairwise(turns) if b.kind is begins]
        lengths = [b.at_s - a.at_s for a, b in pairwise(turns) if b.kind is ends]
        assert np.mean(waits) == pytest.approx(wait_s, rel=0.1)
        assert np.mean(lengths) == pytest.approx(length_s, rel=0.1)
        assert np.std(waits) == pytest.approx(wait_s, rel=0.15)  # exponential: deviation = mean


def test_devices_join_over_a_time_and_live_for_another() -> None:
    found = plan(churn=ChurnConfig(join_within_s=1000, leave_every_s=5000))
    lives = [list(found.device(number).events()) for number in range(1000)]
    assert all([e.kind for e in life] == [EventKind.POWER_ON, EventKind.LEAVE] for life in lives)
    joined = np.array([life[0].at_s for life in lives])
    stayed = np.array([life[1].at_s for life in lives]) - joined
    assert (joined.min(), joined.max()) == (pytest.approx(0, abs=20), pytest.approx(1000, abs=20))
    assert joined.mean() == pytest.approx(500, rel=0.1)
    assert stayed.mean() == pytest.approx(5000, rel=0.1)


def test_a_device_that_joins_late_in_its_night_appears_in_the_morning() -> None:
    """Whatever the phase; a join after a million days asks for no walk through all of them."""
    found = plan(ClassConfig("solar", duty=DutyConfig(10, 1)), churn=ChurnConfig(3e8))
    for number in range(20):
        first, second, third = islice(found.device(number).events(), 3)
        assert first.at_s > 0
        assert 0 < second.at_s - first.at_s <= 1 + 1e-6
        assert third.at_s - second.at_s == pytest.approx(9, abs=1e-6)


def test_classes_have_their_shares_of_every_fleet() -> None:
    kinds = [ClassConfig("a", share=2), ClassConfig("b", share=5), ClassConfig("c", share=3)]
    for seed in range(30):
        found = plan(*kinds, seed=seed)
        for devices in (10, 200, 1000):
            names = Counter(found.device(number).class_name for number in range(devices))
            for kind in kinds:
                assert abs(names[kind.name] - kind.share * devices / 10) <= 2
    firsts = {plan(*kinds, seed=seed).device(0).class_name for seed in range(30)}
    assert firsts == {"a", "b", "c"}  # not always the same numbers


# Jobs.


def test_a_job_takes_its_steps_and_its_start() -> None:
    device = plan(ClassConfig("pi", step_ms=50, start_ms=300)).device(0)
    assert device.job_s("run", 1, 0) == 0.3
    assert device.job_s("run", 9, 40) == pytest.approx(2.3)


def test_jobs_vary_as_asked_for() -> None:
    device = plan(ClassConfig("pi", step_ms=1000, jitter=0.3)).device(0)
    logs = np.log([device.job_s("run", round, 1) for round in range(4000)])
    assert logs.mean() == pytest.approx(0, abs=0.02)
    assert logs.std() == pytest.approx(0.3, rel=0.05)
    assert device.job_s("run", 7, 10) == pytest.approx(10 * device.job_s("run", 7, 1))
    assert device.job_s("other", 7, 1) != device.job_s("run", 7, 1)


def test_stragglers() -> None:
    kind = ClassConfig("pi", step_ms=1000, straggler_share=0.2, straggler_factor=8)
    device = plan(kind).device(0)
    found = Counter(device.job_s("run", round, 1) for round in range(4000))
    assert set(found) == {1.0, 8.0}
    assert found[8.0] / 4000 == pytest.approx(0.2, abs=0.02)


# Messages.


@pytest.mark.parametrize("chance", [0.0, 0.03, 0.5, 1.0])
def test_messages_are_lost_damaged_and_doubled_as_asked_for(chance: float) -> None:
    near = pytest.approx(chance, abs=0.02)
    lost = transits(linked(loss=chance), 4000)
    assert np.mean([transit.copies == () for transit in lost]) == near
    damaged = transits(linked(corrupt=chance), 4000)
    assert np.mean([transit.corrupted for transit in damaged]) == near
    doubled = transits(linked(duplicate=chance), 4000)
    assert np.mean([len(transit.copies) == 2 for transit in doubled]) == near


def test_faults_of_one_message_are_independent() -> None:
    found = [t for t in transits(linked(loss=0.5, corrupt=0.5, duplicate=0.5), 4000) if t.copies]
    counts = Counter((len(transit.copies), transit.corrupted) for transit in found)
    assert len(counts) == 4
    assert min(counts.values()) / len(found) > 0.2


def test_the_delay_lies_between_its_ends_and_copies_part() -> None:
    found = transits(linked(delay_ms=30, jitter_ms=20, duplicate=1.0), 2000)
    delays = np.array([transit.copies for transit in found])  # (2000, 2)
    assert delays.min() == pytest.approx(0.03, abs=1e-4)
    assert delays.max() == pytest.approx(0.05, abs=1e-4)
    assert (delays[:, 0] != delays[:, 1]).all()


def test_directions_have_draws_of_their_own() -> None:
    device = linked(loss=0.5)
    queue = Queue()
    up, down = (
        [device.link.transit(i, 1, direction, 0.0, queue).copies for i in range(200)]
        for direction in (UP, DOWN)
    )
    assert up != down


def test_a_rate_makes_messages_of_one_direction_wait_for_each_other() -> None:
    device = linked(up_kbit_s=8, down_kbit_s=80, delay_ms=100)
    queue = Queue()

    def delay(direction: Direction, size: int, now: float) -> float:
        [found] = device.link.transit(0, size, direction, now, queue).copies
        return found

    assert delay(UP, 1000, 10.0) == pytest.approx(1.1)  # 1000 bytes are 1 s at 8 kbit/s
    assert delay(UP, 500, 10.0) == pytest.approx(1.6)  # behind the first
    assert delay(DOWN, 1000, 10.0) == pytest.approx(0.2)  # the other direction is free
    assert delay(UP, 500, 11.2) == pytest.approx(0.9)  # 0.3 s are left of the second
    assert delay(UP, 1000, 60.0) == pytest.approx(1.1)  # and nothing of the third
    assert queue.up_s == pytest.approx(61.0)
    assert queue.down_s == pytest.approx(10.1)


def test_a_lost_message_takes_its_time() -> None:
    queue = Queue()
    assert linked(up_kbit_s=8, loss=1.0).link.transit(0, 1000, UP, 0.0, queue).copies == ()
    assert queue.up_s == pytest.approx(1.0)


def test_a_draw_is_never_at_its_ends() -> None:
    """A logarithm of 0, or a factor of 1 where 1 is excluded, would be a time that never comes."""
    found = plan(ClassConfig("pi", jitter=3.0, link=LinkConfig(jitter_ms=1)))
    for number in range(2000):
        device = found.device(number)
        assert math.isfinite(device.job_s("run", number, 1))
        [delay] = device.link.transit(number, 1, UP, 0.0, Queue()).copies
        assert 0 < delay < 0.001


# The fleet.


@pytest.mark.parametrize(
    ("kind", "quiet"),
    [
        (ClassConfig("a"), True),
        (ClassConfig("a", jitter=1.0, straggler_share=0.5), True),
        (ClassConfig("a", link=LinkConfig(delay_ms=9, jitter_ms=9, up_kbit_s=9)), True),
        (ClassConfig("a", link=LinkConfig(loss=0.1)), False),
        (ClassConfig("a", link=LinkConfig(corrupt=0.1)), False),
        (ClassConfig("a", link=LinkConfig(duplicate=0.1)), False),
        (ClassConfig("a", link=LinkConfig(cut_every_s=9, cut_s=9)), False),
        (ClassConfig("a", reboot_every_s=9), False),
        (ClassConfig("a", disk_full_every_s=9, disk_full_s=9), False),
        (ClassConfig("a", duty=DutyConfig(9, 5)), False),
    ],
)
def test_a_quiet_plan(kind: ClassConfig, quiet: bool) -> None:
    assert plan(kind).quiet == quiet
    assert plan(ClassConfig("b"), kind).quiet == quiet


def test_churn_is_not_quiet() -> None:
    assert plan().quiet
    assert not any(plan(churn=churn).quiet for churn in (ChurnConfig(1), ChurnConfig(0, 1)))


def test_how_long_all_devices_may_be_away() -> None:
    hours = ClassConfig("b", duty=DutyConfig(period_s=100, on_s=50))
    assert plan().away_s == 0
    assert plan(ClassConfig("a"), hours, churn=ChurnConfig(join_within_s=20)).away_s == 120
