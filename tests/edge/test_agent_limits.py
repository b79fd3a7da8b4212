"""The device's own limits, in the whole agent: what is beyond them waits or is declined, by name."""

import pytest
from tests.edge.harness import DOWN, KEYS, Harness

from sedge_edge.rounds.budget import DAY_S, HOUR_S, MOMENT, STARTS
from sedge_protocol.wire.messages import Cancel, Decline, Get
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.settings import LimitsConfig, name_of

pytestmark = pytest.mark.both_cores


def limited(device: Harness, **limits: float) -> Harness:
    device.limits = LimitsConfig(**limits)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    device.pump(device.reboot())
    return device


def test_orders_at_one_moment_cost_few_commits(device: Harness) -> None:
    limited(device)
    before, journals = len(device.notes), set[bytes]()
    for number in range(1, 301):
        device.listen(device.tell(device.order(number)))
        journals.add((device.folder / "journal").read_bytes())
    assert len(journals) == MOMENT
    assert not device.declines
    dropped = [note for note in device.notes[before:] if "faster than rounds can end" in note]
    assert len(dropped) == 1
    device.now += 10.0
    device.complete(301)


def test_a_coordinator_that_starts_again_and_again_costs_few_commits(device: Harness) -> None:
    limited(device)
    for incarnation in range(8, 300):
        device.peer = Peer(DOWN, KEYS.down, KEYS.up, incarnation, 0)
        device.listen(device.tell(Cancel("none", 0, "")))
    assert device.on_disk().coordinator_incarnation < 8 + STARTS
    device.now += HOUR_S
    device.listen(device.tell(Cancel("none", 0, "")))
    assert device.on_disk().coordinator_incarnation == 299


def test_orders_beyond_an_hours_worth_are_declined_by_name(device: Harness) -> None:
    limited(device, orders_per_hour=3)
    for number in (1, 2, 3):
        device.give(device.order(number))
        device.now += 1.0
    on_disk = device.on_disk()
    for number in (4, 5):
        answers = device.messages(device.tell(device.order(number)))
        (decline,) = (message for message in answers if isinstance(message, Decline))
        assert decline.reason == "TooManyOrders"
        assert "more than 3 orders in an hour, expected fewer" in decline.detail
    assert device.on_disk() == on_disk
    device.now += HOUR_S / 2
    device.complete(6)


def test_the_days_bytes_close_the_gate_also_after_a_restart(device: Harness) -> None:
    limited(device, megabytes_per_day=0.04)
    device.give(device.order(1))  # some 33 kB
    device.give(device.order(2))  # 9 more
    device.order_at_hand = device.order(3)
    effects = device.tell(device.order_at_hand)
    assert not [m for m in device.messages(effects) if isinstance(m, Get)]
    device.pump(effects)
    device.pump(device.agent.poll(device.now + 61.0))
    assert ("run", 3) not in device.updates
    assert any("no more downloads for another" in note for note in device.notes)
    device.agent = device.start()
    device.now = 5.0
    effects = device.connect()
    device.pump(effects)
    assert ("run", 3) not in device.updates
    device.now += DAY_S / 2
    device.settle()
    assert ("run", 3) in device.updates


@pytest.mark.python_only("small limits")
def test_what_came_before_a_kill_counts_once_it_is_much(
    device: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sedge_edge.rounds.budget.COMMIT_BYTES", 4000.0)
    limited(device)
    device.listen(device.tell(device.order(1)))
    device.chunk(device.bundle, 0)
    device.agent.poll(device.now)
    assert device.on_disk().spent.bytes > 4000


def test_training_stops_when_the_days_hours_are_over(device: Harness) -> None:
    limited(device, training_hours_per_day=1.0)
    order = device.order(1)
    device.listen(device.tell(order))
    device.feed(order.bundle, order.model)
    agent = device.agent
    assert not device.must_stop(device.now + 1.0 * HOUR_S)
    late = device.now + 1.05 * HOUR_S
    assert device.must_stop(late)
    device.listen(agent.poll(late))
    assert device.on_disk().spent.seconds > 0.99 * HOUR_S
    agent.interrupted(None)
    device.listen(agent.poll(late + 60.0))
    assert any("no more training for another" in note for note in device.notes)
    assert not device.must_stop(late)


def test_a_coordinator_tightens_limits_and_loosens_none(device: Harness) -> None:
    device.settings = b'{"limits.orders_per_hour": 2.5}'  # neither core rounds it
    limited(device)
    (ignored,) = (
        note for note in device.notes if note.startswith("ignored some of the coordinator's")
    )
    assert "limits.orders_per_hour = 2.5 (Expected `int`, got `float`" in ignored
    device.notes.clear()
    device.settings = (
        b"""{"limits.orders_per_hour": 3, "limits.megabytes_per_day": 1e6, "power": true}"""
    )
    device.pump(device.reboot())
    assert device.hello and device.hello.settings == name_of(device.settings)
    (ignored,) = (
        note for note in device.notes if note.startswith("ignored some of the coordinator's")
    )
    assert "limits.megabytes_per_day" in ignored and "power" in ignored
    for number in (1, 2, 3):
        device.give(device.order(number))
        device.now += 1.0
    device.pump(device.reboot())
    assert not is_taken(device, 4), "they are on the disk"
    device.settings = b""
    device.pump(device.reboot())
    assert device.hello.settings == b""
    assert is_taken(device, 5)


def is_taken(device: Harness, number: int) -> bool:
    """Whether a device does an order, rather than decline it for its limits."""
    answers = device.messages(device.tell(device.order(number)))
    return not any(isinstance(m, Decline) and m.reason == "TooManyOrders" for m in answers)


@pytest.mark.parametrize(
    "settings", [b"{", b"[]", b'{"limits": {}}', b'{"log_level": null}', b"\xff"]
)
def test_settings_that_cannot_be_read_change_nothing(device: Harness, settings: bytes) -> None:
    limited(device)
    device.settings = settings
    device.pump(device.reboot())
    assert device.hello and device.hello.settings == b""
    assert any("dropped a frame" in note and "settings" in note for note in device.notes)
    assert is_taken(device, 1)
