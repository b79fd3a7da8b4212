"""The link against a real Mosquitto: connecting, sending, losing the connection, coming back.

test_mqtt_hostile.py has the brokers that misbehave, test_mqtt_secure.py passwords and TLS.
"""

import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from tests.protocol.driven import Driven, drive, settle, wait

from sedge_emulate.amqtt_broker import AmqttBroker
from sedge_emulate.broker import Broker, find_mosquitto
from sedge_protocol import mqtt
from sedge_protocol.errors import ConfigError, LinkError
from sedge_protocol.loop import Loop
from sedge_protocol.mqtt import (
    DEFAULT_MAX_PACKET,
    BrokerSettings,
    Connected,
    MqttLink,
    Received,
    probe,
)

V311, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a socket's bytes")


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    """A broker that no test may harm."""
    if find_mosquitto() is None and os.environ.get("CI") != "true":
        pytest.skip("Mosquitto is not installed")
    with Broker() as broker:
        yield broker


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconnect at once: how long it waits is a test of its own."""
    monkeypatch.setattr(mqtt, "RECONNECT_FIRST_S", 0.02)
    monkeypatch.setattr(mqtt, "RECONNECT_MAX_S", 0.1)


def settings(url: str, name: str = "pi-1") -> BrokerSettings:
    return BrokerSettings(url, name)


@contextmanager
def connected(
    url: str,
    name: str,
    *topics: str,
    will: Callable[[], tuple[str, bytes]] | None = None,
    version: MQTTProtocolVersion = V5,
) -> Generator[Driven]:
    """A link that is up, with its subscriptions made."""
    link = MqttLink(settings(url, name), topics, will, np.random.default_rng(1))
    link._version = version
    driven = Driven(link)
    try:
        drive(lambda: link.up, driven)
        settle(driven)
        yield driven
    finally:
        link.close()


def names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"client-{number}"


NAMES = names()


def fresh() -> str:
    """A client id that no session of another test has."""
    return next(NAMES)


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 1000, 2**18 + 64])
def test_messages_go_both_ways(
    shared: Broker, version: MQTTProtocolVersion, qos: int, size: int
) -> None:
    payload = os.urandom(size)
    with (
        connected(shared.url, fresh(), "x/down", version=version) as device,
        connected(shared.url, fresh(), "x/up") as coordinator,
    ):
        device.link.send("x/up", payload, qos)
        coordinator.link.send("x/down", payload, qos)
        drive(lambda: bool(device.received() and coordinator.received()), device, coordinator)
    assert coordinator.received() == [Received("x/up", payload)]
    assert device.received() == [Received("x/down", payload)]
    assert device.link.counters.frames_sent == 2  # one of them to settle
    assert device.link.counters.frames_received == 1


def test_the_brokers_packet_limit_is_known(shared: Broker) -> None:
    with connected(shared.url, fresh()) as driven:
        assert driven.events == [Connected(DEFAULT_MAX_PACKET)]


def test_order_is_kept(shared: Broker) -> None:
    with connected(shared.url, fresh(), "order") as driven:
        for number in range(100):
            driven.link.send("order", str(number).encode(), 1)
        drive(lambda: len(driven.received()) == 100, driven)
        assert [int(event.payload) for event in driven.received()] == list(range(100))


def test_topics_are_added_and_taken_away(shared: Broker) -> None:
    with connected(shared.url, fresh(), "own") as driven:
        driven.link.subscribe("blob/1", 0)
        driven.link.subscribe("blob/2", 0)
        settle(driven)
        driven.link.unsubscribe("blob/2")
        settle(driven)
        for topic in ("blob/1", "blob/2", "own"):
            driven.link.send(topic, b"x", 1)
        drive(lambda: len(driven.received()) == 2, driven)
        wait(driven)
        assert [event.topic for event in driven.received()] == ["blob/1", "own"]


@pytest.mark.parametrize("version", [V5, V311])
def test_a_session_outlives_its_connection(shared: Broker, version: MQTTProtocolVersion) -> None:
    name, topic = fresh(), fresh()
    with connected(shared.url, name, topic, version=version) as device:
        device.cut()
        drive(lambda: bool(device.losses()), device)
    with connected(shared.url, fresh()) as coordinator:
        coordinator.link.send(topic, b"meanwhile", 1)
        settle(coordinator)
    with connected(shared.url, name, topic, version=version) as device:
        drive(lambda: bool(device.received()), device)
        assert device.received() == [Received(topic, b"meanwhile")]


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
        with connected(shared.url, fresh(), will=lambda: (topic, b"will")) as device:
            for _ in range(5):
                device.link.send(topic, bytes(200_000), 1)
            device.link.send(topic, b"last", 1)
        drive(lambda: len(coordinator.received()) == 6, coordinator)
        wait(coordinator)
        assert coordinator.received()[-1].payload == b"last"
        assert len(coordinator.received()) == 6


def test_a_broker_that_dies_and_comes_back_empty() -> None:
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed")
    with Broker() as broker, connected(broker.url, "pi-1", "topic") as driven:
        broker.kill()
        drive(lambda: len(driven.losses()) >= 4, driven)
        assert not driven.link.up
        assert driven.link.room == 0
        driven.link.send("topic", b"into the void", 1)
        assert all("cannot reach" in loss.reason for loss in driven.losses()[1:])
        broker.restart()
        drive(lambda: driven.link.up, driven)
        settle(driven)
        driven.link.send("topic", b"again", 1)
        drive(lambda: bool(driven.received()), driven)
        assert driven.received() == [Received("topic", b"again")]
        assert driven.link.counters.connections == 2


def test_a_link_that_is_down_drops_what_it_is_given(shared: Broker) -> None:
    link = MqttLink(settings(shared.url, fresh()), ())
    link.send("x", b"x", 1)
    link.subscribe("x", 0)
    link.unsubscribe("x")
    link.close()
    assert link.counters.frames_sent == 0
    assert (link.fileno(), link.wants_write(), link.room) == (None, False, 0)


def free_port() -> int:
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        port: int = probe_socket.getsockname()[1]
        return port


def test_a_port_where_nobody_listens() -> None:
    driven = Driven(MqttLink(settings(f"mqtt://127.0.0.1:{free_port()}"), ()))
    drive(lambda: len(driven.losses()) == 3, driven)
    for loss in driven.losses():
        assert loss.reason.startswith("cannot reach mqtt://127.0.0.1:")
        assert "refused" in loss.reason


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    driven = Driven(MqttLink(settings("mqtt://broker.example"), ()))
    drive(lambda: bool(driven.losses()), driven)
    assert "cannot reach mqtt://broker.example: " in driven.losses()[0].reason
    assert "Name or service not known" in driven.losses()[0].reason


def test_waiting_grows_to_five_minutes_with_full_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "RECONNECT_FIRST_S", 1.0)
    monkeypatch.setattr(mqtt, "RECONNECT_MAX_S", 300.0)
    link = MqttLink(settings(f"mqtt://127.0.0.1:{free_port()}"), (), None, np.random.default_rng(1))
    driven = Driven(link)
    for _ in range(15):
        link._retry_at = 0.0
        driven.step()
    waits = [loss.retry_s for loss in driven.losses()]
    ceilings = [min(300.0, 2.0**n) for n in range(1, 16)]
    assert all(0.1 * c <= w <= c for w, c in zip(waits, ceilings, strict=True))
    assert max(waits) > 150
    link._retry_at = time.monotonic() + 1000
    driven.step()
    assert len(driven.losses()) == 15
    assert link.timer() == link._retry_at


def test_a_payload_too_large_is_counted_and_not_sent(shared: Broker) -> None:
    """The broker would cut us off, and again after every retry (the poison message)."""
    with connected(shared.url, fresh(), "size") as driven:
        driven.link.send("size", bytes(DEFAULT_MAX_PACKET), 1)
        driven.link.send("size", b"behind it", 1)
        drive(lambda: bool(driven.received()), driven)
        assert driven.received() == [Received("size", b"behind it")]
        assert (driven.link.counters.oversize, driven.link.counters.connections) == (1, 1)


def test_nobody_can_send_us_a_packet_that_is_too_large(shared: Broker) -> None:
    with (
        connected(shared.url, fresh(), "size") as driven,
        connected(shared.url, fresh()) as sender,
    ):
        sender.link._max_packet = 400_000
        sender.link.send("size", bytes(DEFAULT_MAX_PACKET), 1)
        sender.link.send("size", b"behind it", 1)
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
        driven.link.send("topic", b"hello", 1)
        drive(lambda: bool(driven.received()), driven)
        assert driven.received() == [Received("topic", b"hello")]
        assert len(driven.losses()) == 1
        driven.link.close()
    gc.collect()  # amqtt forgets the connection that it refused, and Python would warn of it later


@linux
@pytest.mark.parametrize("qos", [0, 1])
def test_bytes_are_counted_at_the_socket(shared: Broker, qos: int) -> None:
    """100 bytes a frame cover topic and MQTT header; 1,000 the connection's own packets."""
    with (
        connected(shared.url, fresh(), "count") as receiver,
        connected(shared.url, fresh()) as sender,
    ):
        expected = 0
        for size in (0, 10, 5000, 200_000):
            sender.link.send("count", bytes(size), qos)
            expected += size
        drive(lambda: len(receiver.received()) == 4, receiver, sender)
        sent = sender.link.measure()
        got = receiver.link.measure()
        assert expected <= sent.bytes_sent <= expected + 4 * 100 + 1000
        assert expected <= got.bytes_received <= expected + 4 * 100 + 1000
        assert 0 < got.bytes_sent < 1000
    before = sender.link.measure().bytes_sent
    assert before >= expected  # a connection that is over still counts


@linux
def test_bytes_add_up_over_connections(shared: Broker) -> None:
    with connected(shared.url, fresh(), "sum") as driven:
        totals: list[int] = []
        for _ in range(3):
            driven.link.send("sum", bytes(10_000), 1)
            count = len(driven.received()) + 1
            drive(lambda c=count: len(driven.received()) == c, driven)  # type: ignore[misc]
            totals.append(driven.link.measure().bytes_sent)
            driven.cut()
            drive(lambda: not driven.link.up, driven)
            assert driven.link.measure().bytes_sent >= totals[-1]
            drive(lambda: driven.link.up, driven)
            settle(driven)
    assert [10_000 * n <= total <= 10_000 * n + 3000 for n, total in enumerate(totals, 1)] == [
        True
    ] * 3


class Idle:
    """A station that has nothing to say."""

    def __init__(self, link: MqttLink) -> None:
        self.link = link
        self.fileno, self.wants_write, self.timer = link.fileno, link.wants_write, link.timer

    def step(self) -> None:
        self.link.step()


def test_an_idle_link_stays_up(shared: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timer must come due, or nobody would send the broker a ping."""
    monkeypatch.setattr(mqtt, "KEEPALIVE_S", 1)
    monkeypatch.setattr(mqtt, "SERVE_S", 0.2)
    link, loop = MqttLink(settings(shared.url, fresh()), ()), Loop()
    end = time.monotonic() + 3.0  # Mosquitto cuts a silent client off after 1.5 s
    loop.run([Idle(link)], lambda: time.monotonic() > end)
    loop.close()
    assert (link.up, link.counters.connections) == (True, 1)
    link.close()


def test_the_timer_does_not_run_away(shared: Broker) -> None:
    with connected(shared.url, fresh()) as driven:
        driven.step()
        due = driven.link.timer()
        time.sleep(0.01)
        assert driven.link.timer() == due <= time.monotonic() + mqtt.SERVE_S


def test_probe(shared: Broker) -> None:
    probe(settings(shared.url, fresh()), "sedge/1/home/device/pi-1/down")
    with pytest.raises(LinkError, match="refused"):
        probe(settings(f"mqtt://127.0.0.1:{free_port()}"), "x")


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("mqtt://host", ("host", 1883, False)),
        ("mqtts://host", ("host", 8883, True)),
        ("mqtt://host:1", ("host", 1, False)),
        ("mqtts://host:1/", ("host", 1, True)),
        ("mqtt://127.0.0.1:65535", ("127.0.0.1", 65535, False)),
        ("mqtts://[::1]:1234", ("::1", 1234, True)),
    ],
)
def test_urls(url: str, endpoint: tuple[str, int, bool]) -> None:
    assert settings(url).endpoint() == endpoint


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host",
        "host:1883",
        "http://host",
        "mqtt://",
        "mqtt://host/path",
        "mqtt://host:port",
        "mqtt://host:65536",
        "mqtt://host:-1",
        "mqtt:host",
        "mqtt://[::1",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.url: found"):
        MqttLink(settings(url), ())


def test_the_password_does_not_show() -> None:
    assert "topsecret" not in repr(BrokerSettings("mqtt://host", "x", "x", "topsecret"))
