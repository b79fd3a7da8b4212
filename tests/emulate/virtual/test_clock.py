"""Virtual time: order, ties and alarms."""

from sedge_emulate.virtual.clock import MOMENT_S, Alarm, Clock


def run(clock: Clock) -> None:
    while clock.step():
        pass


def test_events_happen_in_order_and_ties_as_asked() -> None:
    clock, seen = Clock(), list[tuple[float, str]]()
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "d")):
        clock.at(when, lambda name=name: seen.append((clock.now, name)))  # type: ignore[misc]
    run(clock)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (3.0, "d")]


def test_the_past_is_now() -> None:
    clock, seen = Clock(), list[float]()
    clock.at(5.0, lambda: clock.at(1.0, lambda: seen.append(clock.now)))
    run(clock)
    assert seen == [5.0]


def test_an_empty_queue_says_so_and_time_stands() -> None:
    clock = Clock()
    assert not clock.step()
    assert clock.now == 0.0


def test_an_alarm_rings_once_at_its_earliest_time() -> None:
    clock, seen = Clock(), list[float]()
    alarm = Alarm(clock, lambda: seen.append(clock.now))
    alarm.set(4.0)
    alarm.set(2.0)
    alarm.set(3.0)
    alarm.set(None)
    run(clock)
    assert seen == [2.0]


def test_an_alarm_that_is_due_at_once_lets_a_moment_pass() -> None:
    clock, seen = Clock(), list[float]()
    alarm = Alarm(clock, lambda: seen.append(clock.now))
    clock.at(1.0, lambda: alarm.set(0.0))
    clock.at(1.0, lambda: alarm.set(1.0))
    run(clock)
    assert seen == [1.0 + MOMENT_S]


def test_a_cleared_alarm_does_not_ring_but_can_be_set_again() -> None:
    clock, seen = Clock(), list[float]()
    alarm = Alarm(clock, lambda: seen.append(clock.now))
    alarm.set(1.0)
    alarm.clear()
    alarm.set(2.0)
    run(clock)
    assert seen == [2.0]
