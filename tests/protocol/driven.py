"""A link that a test steps by hand, and everything that has happened on it."""

import itertools
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from sedge_protocol.host.mqtt import (
    BrokerSettings,
    Connected,
    Disconnected,
    LinkEvent,
    MqttLink,
    Received,
)
from sedge_protocol.host.sockets import bare
from sedge_protocol.wire import reconnect

WAIT_S = 15.0
V311, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
_NUMBERS = itertools.count(1)


class Driven:
    def __init__(self, link: MqttLink) -> None:
        self.link = link
        self.events: list[LinkEvent] = []

    def step(self) -> None:
        self.events += self.link.step()

    def received(self) -> list[Received]:
        return [event for event in self.events if isinstance(event, Received)]

    def losses(self) -> list[Disconnected]:
        return [event for event in self.events if isinstance(event, Disconnected)]

    def connections(self) -> list[Connected]:
        return [event for event in self.events if isinstance(event, Connected)]

    def cut(self) -> None:
        """Lose the connection as a network would: without a word of MQTT."""
        client = self.link._client
        assert client is not None
        sock = bare(client.socket())
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)


def drive(done: Callable[[], bool], *links: Driven) -> None:
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end, [driven.events[-3:] for driven in links]
        for driven in links:
            driven.step()
        time.sleep(0.001)


def settle(driven: Driven) -> None:
    """Until the broker has done all that it was asked: it answers one client's packets in order."""
    client = driven.link._client
    assert client is not None
    client._send_pingreq()
    drive(lambda: client._ping_t == 0, driven)


def wait(*links: Driven) -> None:
    """Give what should not come the time to come."""
    end = time.monotonic() + 0.1
    drive(lambda: time.monotonic() > end, *links)


def settings(url: str, name: str = "pi-1") -> BrokerSettings:
    return BrokerSettings(url, name)


@contextmanager
def connected(
    url: str,
    name: str,
    *topics: str,
    will: Callable[[], tuple[str, bytes]] | None = None,
    version: MQTTProtocolVersion = V5,
    admit: Callable[[str, bytes], bool] = lambda topic, payload: True,
) -> Generator[Driven]:
    """A link that is up, with its subscriptions made."""
    link = MqttLink(settings(url, name), topics, will, admit=admit)
    link._version = version
    driven = Driven(link)
    try:
        drive(lambda: link.up, driven)
        settle(driven)
        yield driven
    finally:
        link.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is imported links connect again at once: how long they wait is a test of its own."""
    monkeypatch.setattr(reconnect, "CEILINGS_S", dict.fromkeys(reconnect.Ended, 0.02))


def fresh() -> str:
    """A client id that no session of another test has."""
    return f"client-{next(_NUMBERS)}"
