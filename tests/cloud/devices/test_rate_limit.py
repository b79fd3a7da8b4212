"""What one device may say: honest ones never notice, a flood changes nothing for the others."""

import logging
from pathlib import Path

from tests.cloud.helper import RUN, Cloud, a_hello

from sedge_cloud.devices.rate_limit import BURST, RATE, WARN_EVERY_S, Allowance
from sedge_protocol.wire.messages import Offer, Reject, Welcome
from sedge_protocol.wire.transfer import describe

BLOB = b"an update"
MANIFEST = describe(BLOB)


def spent(allowance: Allowance, times: int, now: float) -> int:
    """How many of so many messages at one moment are looked at."""
    return sum(allowance.spend(now) for _ in range(times))


def test_a_burst_and_then_the_rate() -> None:
    allowance = Allowance()
    assert spent(allowance, int(2 * BURST), 0.0) == BURST
    assert spent(allowance, int(2 * RATE), 1.0) == RATE
    assert spent(allowance, int(2 * BURST), 1e6) == BURST  # it never holds more
    assert spent(allowance, 1, 0.0) == 0  # a clock that goes back gives nothing


def test_the_rate_can_go_on_for_ever() -> None:
    allowance = Allowance()
    steps = int(4 * BURST)
    assert all(allowance.spend(step / RATE) for step in range(steps))


def test_a_warning_once_a_minute() -> None:
    allowance = Allowance()
    assert [allowance.warns(now) for now in (0.0, 1.0, WARN_EVERY_S, WARN_EVERY_S + 1)] == [
        True, False, True, False,
    ]  # fmt: skip


def test_a_flood_of_offers_is_cut_and_said_once(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.hello("a", "b")
    offer = Offer(RUN, 9, MANIFEST, 1, BLOB)  # of a round that is not there: rejected each time
    answers = [cloud.say("a", offer, MANIFEST.transfer) for _ in range(int(BURST) + 500)]
    heard = [answer for answer in answers if answer]
    assert BURST - 10 <= len(heard) <= BURST
    assert all(isinstance(message, Reject) for answer in heard for message in answer)
    assert not any(answers[-500:])
    assert len([text for text in cloud.notes(logging.WARNING) if "messages a second" in text]) == 1
    assert cloud.core.counters["flood"] >= 500
    # The others are heard meanwhile, and it is again when it has calmed down.
    assert isinstance(cloud.say("b", a_hello("again"))[0], Welcome)
    cloud.poll(1.0)
    assert cloud.say("a", offer, MANIFEST.transfer)


def test_a_flood_of_garbage_does_not_fill_the_log(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.hello("a", "b")
    for _ in range(int(BURST) + 500):
        assert cloud.give("a", b"not a frame") == []
    warnings = cloud.notes(logging.WARNING)
    assert len(warnings) <= BURST + 1 and "messages a second" in warnings[-1]
    for _ in range(int(BURST) + 500):  # nor does one of nobody
        cloud.core.receive("sedge/1/bench/device/nobody/up", b"", cloud.now)
    assert cloud.core.counters["foreign"] == BURST + 500


def test_chunks_are_not_counted(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.hello("a", "b")
    for index in range(int(BURST) + 500):  # of a transfer that nobody has offered
        cloud.chunk("a", MANIFEST.transfer, index, BLOB)
    assert not cloud.core.counters["flood"]
    assert isinstance(cloud.say("a", a_hello("again"))[0], Welcome)
