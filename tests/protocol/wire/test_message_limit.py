"""How large messages may be, of brokers that announce nothing, hang up or lose some."""

import pytest

from sedge_protocol.wire.frame import MAX_PACKET_BYTES
from sedge_protocol.wire.message_limit import (
    BELIEVED_S,
    DEAF_TRIES,
    MOST_SILENCE_S,
    PACKET_SIZES,
    SILENCE_S,
    SMALL,
    LimitProbe,
)


class Broker:
    """What becomes of packets: larger ones than ``limit`` are dropped, or end the connection.

    ``lost`` are numbers of messages that never come back, whatever their size.
    """

    def __init__(self, limit: int, hangs_up: bool = False, lost: tuple[int, ...] = ()) -> None:
        self.limit = limit
        self.hangs_up = hangs_up
        self.lost = lost
        self.count = 0  # messages so far
        self.connections = 0
        self.now = 0.0

    def measure(self, probe: LimitProbe, announced: int = MAX_PACKET_BYTES) -> int:
        """What the probe finds, over as many connections as it takes."""
        probe.connected(announced, self.now)
        self.connections += 1
        while probe.limit is None:
            sent = probe.poll(self.now)
            if not sent:
                at = probe.timer()
                assert at is not None and at - self.now <= MOST_SILENCE_S
                self.now = at
            for number, size in sent:
                self.count += 1
                if size > self.limit and self.hangs_up:
                    probe.disconnected()
                    return self.measure(probe, announced)
                if size <= self.limit and self.count not in self.lost:
                    probe.came_back(number, self.now)
        assert probe.timer() is None and probe.poll(self.now) == []
        return probe.limit


@pytest.mark.parametrize("hangs_up", [False, True])
@pytest.mark.parametrize(
    ("limit", "found"),
    [(10_000, 1024), *((size, size) for size in PACKET_SIZES), (10**6, PACKET_SIZES[-1])],
)
def test_the_largest_size_that_comes_back(limit: int, found: int, hangs_up: bool) -> None:
    broker = Broker(limit, hangs_up)
    assert broker.measure(LimitProbe()) == found
    assert broker.connections == (3 if hangs_up and limit < PACKET_SIZES[-1] else 1)


def test_a_broker_that_lets_nothing_but_small_messages_through() -> None:
    assert Broker(300).measure(LimitProbe()) == 256


@pytest.mark.parametrize(
    ("announced", "found"), [(65_536, 65_536), (50_000, 50_000), (400_000, 266_304)]
)
def test_nothing_larger_is_sent_than_is_announced(announced: int, found: int) -> None:
    broker = Broker(announced, hangs_up=True)
    assert broker.measure(LimitProbe(), announced) == found
    assert broker.connections == 1


@pytest.mark.parametrize("lost", range(1, 10))
def test_one_message_that_is_lost_proves_nothing(lost: int) -> None:
    assert Broker(65_536, lost=(lost,)).measure(LimitProbe()) == 65_536


def test_a_connection_begins_where_the_last_one_ended() -> None:
    probe = LimitProbe()
    first = Broker(10**6)
    first.measure(probe)
    again = Broker(10**6)
    assert again.measure(probe) == PACKET_SIZES[-1]
    assert (first.count, again.count) == (2 * len(PACKET_SIZES), 4)
    assert Broker(20_000).measure(probe) == 16_000, "another broker"
    assert Broker(10**6).measure(probe) == PACKET_SIZES[-1]


def test_a_size_that_ends_connections_is_tried_again_after_an_hour() -> None:
    probe, broker = LimitProbe(), Broker(65_536, hangs_up=True)
    assert broker.measure(probe) == 65_536
    broker.limit = 10**6
    assert broker.measure(probe) == 65_536
    broker.now += BELIEVED_S + 1
    assert broker.measure(probe) == PACKET_SIZES[-1]


def test_links_that_break_for_another_reason_say_nothing_of_sizes() -> None:
    """Such as a broker that refuses the subscription: not even a small message has come back."""
    probe = LimitProbe()
    for _ in range(10):
        probe.connected(MAX_PACKET_BYTES, 0.0)
        probe.poll(0.0)
        probe.disconnected()
    assert Broker(10**6).measure(probe) == PACKET_SIZES[-1]


def test_numbers_that_were_not_sent_prove_nothing() -> None:
    probe = LimitProbe()
    probe.connected(2000, 0.0)
    for number in {*range(100)} - {number for number, _ in probe.poll(0.0)}:
        probe.came_back(number, 0.0)
    assert probe.poll(0.0) == [] and [size for _, size in probe.poll(SILENCE_S)] == [1024, SMALL]


def test_over_a_slow_link_an_earlier_message_of_the_size_proves_it() -> None:
    """Each takes seven seconds: it comes when the next one is on its way already."""
    probe = LimitProbe()
    probe.connected(2000, 0.0)
    due: list[tuple[float, int]] = []
    now = 0.0
    while probe.limit is None:
        assert now < 300
        due += [(now + 7.0, number) for number, _ in probe.poll(now)]
        for at, number in list(due):
            if at <= now:
                due.remove((at, number))
                probe.came_back(number, now)
        now += 1.0
    assert (probe.limit, probe.deaf) == (2000, False)


def test_where_nothing_comes_back_the_least_limit_is_taken() -> None:
    probe = LimitProbe()
    probe.connected(MAX_PACKET_BYTES, 0.0)
    sent = 0
    while probe.limit is None:
        at = probe.timer()
        assert at is not None and at < SILENCE_S * 2**DEAF_TRIES
        sent += len(probe.poll(at))
    assert (probe.limit, probe.deaf, sent) == (16_000, True, 2 * DEAF_TRIES)
