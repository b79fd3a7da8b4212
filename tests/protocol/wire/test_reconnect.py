"""A fleet without its broker, in virtual time: how soon and how densely it is back, what its tries cost."""

import itertools
import math

import numpy as np
import pytest

from sedge_protocol.wire.reconnect import Ended, Reconnect, longest_s

SEEDS = range(4)


def tries(link: Reconnect, ended: Ended, outage_s: float) -> list[float]:
    """When a link tries that has lost its broker at 0, up to the first try after the outage."""
    at = [link.wait_s(Ended.HEARD, 0.0)]
    while at[-1] < outage_s:
        at.append(at[-1] + link.wait_s(ended, at[-1]))
    return at


def returns(
    devices: int, outage_s: float, ended: Ended = Ended.REFUSED, seed: int = 0
) -> list[float]:
    """The seconds from the broker's return until each device of a fleet is back, in order."""
    rng = np.random.default_rng(seed)
    fleet = [Reconnect(rng, devices=devices) for _ in range(devices)]
    return sorted(tries(link, ended, outage_s)[-1] - outage_s for link in fleet)


@pytest.mark.parametrize(
    ("devices", "outage_s", "ended", "within_s"),
    [
        (8, 60, Ended.REFUSED, 5),
        (8, 180, Ended.REFUSED, 5),
        (8, 180, Ended.UNANSWERED, 5),
        (300, 120, Ended.REFUSED, 30),
        (300, 1200, Ended.REFUSED, 30),
        (8, 7200, Ended.REFUSED, 30),
        (8, 7200, Ended.UNANSWERED, 60),
    ],
)
def test_a_fleet_is_soon_back(devices: int, outage_s: float, ended: Ended, within_s: float) -> None:
    assert all(returns(devices, outage_s, ended, seed)[-1] <= within_s for seed in SEEDS)


@pytest.mark.parametrize("ended", [Ended.REFUSED, Ended.UNANSWERED])
def test_a_device_that_was_cut_off_alone_is_back_within_a_small_part_of_the_outage(
    ended: Ended,
) -> None:
    alone = [Reconnect(np.random.default_rng(seed)) for seed in SEEDS]
    assert all(tries(link, ended, 360)[-1] - 360 <= 10 for link in alone)


@pytest.mark.parametrize(
    ("devices", "outage_s", "most"), [(300, 0, 150), (300, 120, 50), (3000, 0, 300), (8, 0, 8)]
)
def test_a_large_fleet_does_not_come_in_one_second(
    devices: int, outage_s: float, most: int
) -> None:
    for seed in SEEDS[:5]:
        back = returns(devices, outage_s, seed=seed)
        seconds = np.searchsorted(back, [t + 1 for t in back]) - np.arange(devices)
        assert seconds.max() <= most


def test_a_long_outage_costs_few_tries() -> None:
    link = Reconnect(np.random.default_rng(1), devices=8)
    rates = {
        ended: len([at for at in tries(link, ended, 7200) if at > 3600])
        for ended in (Ended.REFUSED, Ended.UNANSWERED, Ended.TURNED_AWAY)
    }
    assert rates[Ended.REFUSED] < 300  # of 100 bytes each: 30 kB an hour
    assert rates[Ended.UNANSWERED] < 150
    assert rates[Ended.TURNED_AWAY] < 30


def test_a_coordinator_is_always_soon_back_unless_it_is_refused() -> None:
    link = Reconnect(np.random.default_rng(1), most_s=5.0)
    for ended in (Ended.REFUSED, Ended.UNANSWERED):
        assert all(b - a <= 5 for a, b in itertools.pairwise(tries(link, ended, 86_400)))
    assert max(link.wait_s(Ended.TURNED_AWAY, 90_000.0) for _ in range(20)) > 150


def test_a_new_device_is_soon_back_for_a_while() -> None:
    """Its account is about to be made; later it costs the broker no more than any other."""
    times = tries(Reconnect(np.random.default_rng(1), is_new=True), Ended.TURNED_AWAY, 7200)
    early = [at for at in times if at < 600]
    assert all(b - a <= 10 for a, b in itertools.pairwise(early)) and len(early) < 250
    assert len(times) - len(early) < 60


def test_the_waits_fill_the_time_up_to_the_longest() -> None:
    link = Reconnect(np.random.default_rng(1), devices=8)
    link.wait_s(Ended.HEARD, 0.0)
    for failures in range(1, 12):
        longest = longest_s(Ended.REFUSED, failures, 0.0, 8)
        assert math.isclose(longest, min(5.0, 2.0**failures))
        assert 0.1 * longest <= link.wait_s(Ended.REFUSED, 0.0) <= longest
    waits = [link.wait_s(Ended.REFUSED, 0.0) for _ in range(200)]
    assert min(waits) < 0.7 and max(waits) > 4.8
    assert link.wait_s(Ended.HEARD, 500.0) <= 1.0  # the row begins anew
