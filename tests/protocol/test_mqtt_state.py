"""What a link says of itself: where it cannot connect, how long it waits, what it has counted."""

import itertools
import socket
import sys
import time
from types import SimpleNamespace

import pytest
from tests.protocol.driven import WAIT_S, Driven, connected, drive, fresh, settings, settle
from tests.protocol.driven import quick as quick
from tools.bench.parts.real_fleet import free_port

from sedge_emulate.broker.brokers import Broker
from sedge_protocol.errors import ConfigError
from sedge_protocol.host import mqtt
from sedge_protocol.host.loop import Loop
from sedge_protocol.host.mqtt import BrokerSettings, MqttLink
from sedge_protocol.host.sockets import socket_bytes
from sedge_protocol.wire import reconnect

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a socket's bytes")


def test_a_port_where_nobody_listens() -> None:
    driven = Driven(MqttLink(settings(f"mqtt://127.0.0.1:{free_port()}"), ()))
    drive(lambda: len(driven.losses()) == 3, driven)
    for loss in driven.losses():
        assert loss.reason.startswith("cannot reach mqtt://127.0.0.1:")
        assert "refused" in loss.reason


def test_it_waits_as_long_as_was_said_and_logs_an_outage_once_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_S", 900.0)
    monkeypatch.setattr(reconnect, "SOON_S", 900.0)
    monkeypatch.setattr(reconnect, "CEILINGS_S", dict.fromkeys(reconnect.Ended, 900.0))
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(mqtt, "time", SimpleNamespace(monotonic=lambda: clock.now))
    driven = Driven(MqttLink(settings(f"mqtt://127.0.0.1:{free_port()}"), ()))
    driven.step()
    logged = [clock.now]
    for count in range(1, 40):
        assert driven.link.timer() == clock.now + driven.losses()[-1].retry_s
        clock.now = driven.link.timer() - 0.01
        driven.step()
        assert len(driven.losses()) == count  # not a moment too early
        clock.now = driven.link.timer()
        driven.step()
        logged += [clock.now] if driven.losses()[-1].is_news else []
    assert len(logged) > 3
    assert all(3600 <= b - a <= 3600 + 900 for a, b in itertools.pairwise(logged))


class OldSocket(socket.socket):
    """As of a kernel that does not count bytes yet."""

    def getsockopt(self, *_: object) -> bytes:  # type: ignore[override]
        return bytes(range(1, 193))


def test_where_no_bytes_are_counted_there_are_none() -> None:
    with socket.socket() as sock, OldSocket() as old:
        assert socket_bytes(old) == (0, 0)
    assert socket_bytes(sock) == (0, 0), "closed"


@linux
def test_bytes_add_up_over_connections(shared: Broker) -> None:
    with connected(shared.url, fresh(), "sum") as driven:
        totals: list[int] = []
        for _ in range(3):
            driven.link.send("sum", bytes(10_000))
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


@linux
def test_an_idle_link_says_that_it_lives(shared: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timer must come due, or nobody would send the broker a ping."""
    monkeypatch.setattr(mqtt, "KEEPALIVE_S", 1)
    monkeypatch.setattr(mqtt, "SERVE_S", 0.2)
    with connected(shared.url, fresh()) as driven:
        before, loop = driven.link.measure().bytes_sent, Loop()
        end = time.monotonic() + WAIT_S
        loop.run(
            [Idle(driven.link)],
            lambda: driven.link.measure().bytes_sent > before or time.monotonic() > end,
        )
        loop.close()
        assert driven.link.measure().bytes_sent == before + 2  # PINGREQ


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("mqtt://host", ("host", 1883, False, None)),
        ("mqtts://host", ("host", 8883, True, None)),
        ("mqtt://host:1", ("host", 1, False, None)),
        ("mqtts://host:1/", ("host", 1, True, None)),
        ("ws://host", ("host", 80, False, "/mqtt")),
        ("wss://host/broker/ws", ("host", 443, True, "/broker/ws")),
        ("mqtt://127.0.0.1:65535", ("127.0.0.1", 65535, False, None)),
        ("mqtts://[::1]:1234", ("::1", 1234, True, None)),
    ],
)
def test_urls(url: str, endpoint: tuple[str, int, bool, str | None]) -> None:
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
        "mqtt://host:0",
        "mqtt://host?keepalive=5",
        "mqtt://host#one",
        "mqtt://pi-1@host",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.url: found"):
        MqttLink(settings(url), ())


def test_a_password_in_the_url_is_refused_and_does_not_show() -> None:
    with pytest.raises(ConfigError, match="set the password separately") as error:
        settings("mqtt://pi-1:topsecret@host").endpoint()
    assert "topsecret" not in str(error.value) and "mqtt://...@host" in str(error.value)


def test_the_password_and_the_private_key_do_not_show() -> None:
    secret = BrokerSettings("mqtt://host", "x", "x", "topsecret", client_pem="topsecret")
    assert "topsecret" not in repr(secret)
