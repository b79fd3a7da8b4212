"""The link against a real Mosquitto: messages, sessions, wills, and brokers that come and go.

test_mqtt_state.py has what a link says of itself, test_mqtt_hostile.py brokers that misbehave,
test_mqtt_secure.py passwords and TLS.
"""

import gc
import os

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from tests.protocol.driven import (
    V5,
    V311,
    Driven,
    connected,
    drive,
    fresh,
    settings,
    settle,
    wait,
)
from tests.protocol.driven import quick as quick

from sedge_cloud.broker.child import find_mosquitto
from sedge_emulate.broker.brokers import AmqttBroker, Broker
from sedge_protocol.host import mqtt
from sedge_protocol.host.mqtt import MqttLink, Received, TooLarge
from sedge_protocol.wire.frame import MAX_PACKET_BYTES


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize("size", [0, 2**18 + 64])
def test_messages_go_both_ways(shared: Broker, version: MQTTProtocolVersion, size: int) -> None:
    payload = os.urandom(size)
    with (
        connected(shared.url, fresh(), "x/down", version=version) as device,
        connected(shared.url, fresh(), "x/up") as coordinator,
    ):
        device.link.send("x/up", payload)
        coordinator.link.send("x/down", payload)
        drive(lambda: bool(device.received() and coordinator.received()), device, coordinator)
    assert coordinator.received() == [Received("x/up", payload)]
    assert device.received() == [Received("x/down", payload)]
    assert device.link.counters.frames_sent == device.link.counters.frames_received == 1


def test_what_is_not_admitted_is_dropped_as_it_arrives(shared: Broker) -> None:
    asked: list[tuple[str, bytes]] = []

    def admit(topic: str, payload: bytes) -> bool:
        asked.append((topic, payload))
        return payload == b"good"

    with connected(shared.url, fresh(), "x/up", admit=admit) as driven:
        for payload in (b"bad", b"good", b"bad"):
            driven.link.send("x/up", payload)
        drive(lambda: len(asked) == 3, driven)
        assert driven.received() == [Received("x/up", b"good")]
        assert asked == [("x/up", b"bad"), ("x/up", b"good"), ("x/up", b"bad")]


def test_topics_are_added_and_taken_away(shared: Broker) -> None:
    with connected(shared.url, fresh(), "own") as driven:
        driven.link.subscribe("blob/1")
        driven.link.subscribe("blob/2")
        settle(driven)
        driven.link.unsubscribe("blob/2")
        settle(driven)
        for topic in ("blob/1", "blob/2", "own"):
            driven.link.send(topic, b"x")
        drive(lambda: len(driven.received()) == 2, driven)
        wait(driven)
        assert [event.topic for event in driven.received()] == ["blob/1", "own"]


@pytest.mark.parametrize("version", [V5, V311])
def test_every_connection_begins_afresh(shared: Broker, version: MQTTProtocolVersion) -> None:
    """A broker that kept what was said to us meanwhile would also keep what harms a session."""
    topic = fresh()
    with (
        connected(shared.url, fresh(), topic, version=version) as device,
        connected(shared.url, fresh()) as coordinator,
    ):
        device.cut()
        drive(lambda: bool(device.losses()), device)
        coordinator.link.send(topic, b"meanwhile")
        settle(coordinator)
        drive(lambda: device.link.up, device)
        settle(device)
        coordinator.link.send(topic, b"now")
        drive(lambda: bool(device.received()), device, coordinator)
        assert device.received() == [Received(topic, b"now")]


def test_two_of_one_name_do_not_push_each_other_out(shared: Broker) -> None:
    name, topic = fresh(), fresh()
    with connected(shared.url, name, topic) as first, connected(shared.url, name, topic) as second:
        first.link.send(topic, b"to both")
        drive(lambda: bool(first.received() and second.received()), first, second)
        assert not first.losses() and not second.losses()


def test_the_will_speaks_for_a_link_that_is_lost(shared: Broker) -> None:
    made: list[int] = []
    topic = fresh()

    def will() -> tuple[str, bytes]:
        made.append(len(made) + 1)
        return topic, f"goodbye {len(made)}".encode()

    with (
        connected(shared.url, fresh(), topic) as coordinator,
        connected(shared.url, fresh(), will=will) as device,
    ):
        for number in (1, 2):
            device.cut()
            drive(lambda n=number: len(coordinator.received()) == n, coordinator, device)  # type: ignore[misc]
            drive(lambda: device.link.up, coordinator, device)
    assert [event.payload for event in coordinator.received()] == [b"goodbye 1", b"goodbye 2"]
    assert made == [1, 2, 3]


def test_closing_says_what_is_left_to_say_and_no_will(shared: Broker) -> None:
    topic = fresh()
    with connected(shared.url, fresh(), topic) as coordinator:
        with connected(shared.url, fresh(), "own", will=lambda: (topic, b"will")) as device:
            device.link.send("own", bytes(200_000))  # unread when it leaves
            for _ in range(5):
                device.link.send(topic, bytes(200_000))
            device.link.send(topic, b"last")
        drive(lambda: len(coordinator.received()) == 6, coordinator)
        wait(coordinator)
        assert coordinator.received()[-1].payload == b"last"
        assert len(coordinator.received()) == 6


def test_a_broker_that_dies_and_comes_back_empty() -> None:
    if find_mosquitto() is None and os.environ.get("CI") != "true":
        pytest.skip("Mosquitto is not installed")
    with Broker() as broker, connected(broker.url, "pi-1", "topic") as driven:
        broker.kill()
        drive(lambda: len(driven.losses()) >= 4, driven)
        assert not driven.link.up
        assert driven.link.room == 0
        driven.link.send("topic", b"into the void")
        assert all("cannot reach" in loss.reason for loss in driven.losses()[1:])
        broker.restart()
        drive(lambda: driven.link.up, driven)
        settle(driven)
        driven.link.send("topic", b"again")
        drive(lambda: bool(driven.received()), driven)
        assert driven.received() == [Received("topic", b"again")]
        assert driven.link.counters.connections == 2


def test_a_link_that_is_down_drops_what_it_is_given(shared: Broker) -> None:
    link = MqttLink(settings(shared.url, fresh()), ())
    link.send("x", b"x")
    link.subscribe("x")
    link.unsubscribe("x")
    link.close()
    assert link.counters.frames_sent == 0
    assert (link.fileno(), link.wants_write(), link.room) == (None, False, 0)


def test_a_message_too_large_is_not_sent_and_said(shared: Broker) -> None:
    """The broker would cut us off, and again after every retry (the poison message)."""
    with connected(shared.url, fresh(), "size") as driven:
        driven.link.send("size", bytes(MAX_PACKET_BYTES))
        driven.link.send("size", b"behind it")
        drive(lambda: bool(driven.received()), driven)
        assert driven.received() == [Received("size", b"behind it")]
        assert (driven.link.counters.oversize, driven.link.counters.connections) == (1, 1)
        (said,) = (event for event in driven.events if isinstance(event, TooLarge))
        assert said == TooLarge("size", MAX_PACKET_BYTES + 4 + 64, MAX_PACKET_BYTES)


def test_nobody_can_send_us_a_packet_that_is_too_large(shared: Broker) -> None:
    with connected(shared.url, fresh(), "size") as driven, connected(shared.url, fresh()) as sender:
        sender.link._max_packet = 400_000
        sender.link.send("size", bytes(MAX_PACKET_BYTES))
        sender.link.send("size", b"behind it")
        drive(lambda: bool(driven.received()), driven, sender)
        assert driven.received() == [Received("size", b"behind it")]
        assert driven.link.counters.connections == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_broker_that_speaks_3_1_1_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """amqtt takes our session's expiry for the length of a client id, and waits for the rest of it."""
    monkeypatch.setattr(mqtt, "CONNECT_TIMEOUT_S", 1.0)
    with AmqttBroker() as broker:
        driven = Driven(MqttLink(settings(broker.url), ("topic",)))
        drive(lambda: driven.link.up, driven)
        assert "did not answer" in driven.losses()[0].reason
        settle(driven)
        driven.link.send("topic", b"hello")
        drive(lambda: bool(driven.received()), driven)
        assert driven.received() == [Received("topic", b"hello")]
        assert len(driven.losses()) == 1
        driven.link.close()
    gc.collect()  # amqtt forgets the connection that it refused, and Python would warn of it later
