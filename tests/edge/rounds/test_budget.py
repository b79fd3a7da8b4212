"""What a device does at most: orders at a moment and in an hour, bytes and training in a day."""

import pytest

from sedge_edge.rounds.budget import (
    COMMIT_BYTES,
    COMMIT_S,
    DAY_S,
    HOUR_S,
    MOMENT,
    Budget,
    Spent,
)
from sedge_protocol.wire.settings import LimitsConfig

LIMITS = LimitsConfig(orders_per_hour=100, megabytes_per_day=1.0, training_hours_per_day=8.0)
CLOCK = 1_800_000_000
NOTHING = Spent()


def budget(
    limits: LimitsConfig | None = LIMITS, spent: Spent = NOTHING, clock_s: int = CLOCK
) -> Budget:
    made = Budget(limits, spent, clock_s)
    made.passed(0.0)
    return made


def taken(one: Budget, times: int) -> int:
    return sum(one.order() is None for _ in range(times))


def test_so_many_orders_at_a_moment_and_in_an_hour() -> None:
    one = budget()
    assert taken(one, 300) == MOMENT
    assert one.order() == ""
    total, now = MOMENT, 0.0
    while now < HOUR_S / 2:
        now += 1.0
        one.passed(now)
        total += taken(one, 5)
    assert 100 + 49 <= total <= 100 + 51  # the hour's worth, and what has drained in half an hour
    assert "limits.orders_per_hour of edge.toml: more than 100 orders" in (one.order() or "")
    one.passed(now + 2 * HOUR_S)
    assert one.order() is None


def test_of_what_is_refused_the_log_says_one_in_an_hour() -> None:
    one, told = budget(), list[bool]()
    for now in (0.0, 1.0, HOUR_S - 1, HOUR_S, HOUR_S + 1, 3 * HOUR_S):
        one.passed(now)
        told.append(one.tells())
    assert told == [True, False, False, True, False, True]


def test_bytes_of_a_day() -> None:
    one = budget()
    one.received(999_999)
    assert one.closed() == ""
    one.received(1)
    assert (
        one.closed()
        == "limits.megabytes_per_day of edge.toml: no more downloads for another 2.4 hours"
    )
    one.passed(2 * HOUR_S)
    assert one.closed()  # it does not open for every byte that drains
    one.passed(2.5 * HOUR_S)
    assert one.closed() == ""


def test_training_hours_of_a_day() -> None:
    one = budget()
    one.works(True)
    one.passed(8 * HOUR_S)
    assert one.closed() == ""  # a third of it has drained meanwhile
    assert not one.must_stop(11.9 * HOUR_S) and one.must_stop(12.1 * HOUR_S + 8)
    one.passed(12 * HOUR_S)
    one.works(False)
    assert (
        "limits.training_hours_per_day of edge.toml: no more training for another 2" in one.closed()
    )
    one.passed(15 * HOUR_S)
    assert one.closed() == ""


@pytest.mark.parametrize(
    ("clock_s", "left"),
    [
        (CLOCK, 1.0),
        (CLOCK + int(DAY_S / 2), 0.5),
        (CLOCK + int(30 * DAY_S), 0.0),
        (0, 1.0),  # a clock without a battery
        (CLOCK - int(DAY_S), 1.0),
    ],
)
def test_a_restart_forgives_only_the_time_that_has_passed(clock_s: int, left: float) -> None:
    one = budget()
    one.received(1_000_000)
    again = budget(spent=one.commit(), clock_s=clock_s)
    assert again.commit().bytes == pytest.approx(left * 1e6)


def test_a_clock_that_is_set_while_it_runs_gives_nothing() -> None:
    one = budget(clock_s=0)
    one.received(1_000_000)
    one.passed(HOUR_S)
    spent = one.commit()
    assert spent.at == HOUR_S and spent.bytes == pytest.approx(1e6 * 23 / 24)


def test_much_is_committed_by_itself_and_little_is_not() -> None:
    one = budget(LimitsConfig())
    one.received(int(COMMIT_BYTES) - 1)
    assert not one.owes
    one.received(1)
    assert one.owes
    one.commit()
    assert not one.owes
    one.works(True)
    one.passed(COMMIT_S)
    assert one.owes


def test_without_limits_nothing_is_limited_or_kept() -> None:
    one = budget(None)
    one.received(10**15)
    one.works(True)
    one.passed(100 * DAY_S)
    assert taken(one, 10_000) == 10_000 and not one.closed() and not one.owes
    assert not one.must_stop(200 * DAY_S)
    assert one.commit() == Spent()


def test_no_default_stops_the_fastest_fleet_or_one_that_catches_up() -> None:
    """Fifty rounds a second for a minute; sixteen runs at once, with a model of 25 million parameters."""
    one = budget(LimitsConfig())
    for number in range(3000):
        one.passed(number / 50)
        assert one.order() is None
    away = budget(LimitsConfig())
    assert taken(away, 16) == 16
    away.received(16 * 4 * 25_000_000)
    away.works(True)
    away.passed(HOUR_S)
    assert not away.closed()
