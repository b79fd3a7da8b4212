"""A link that a test steps by hand, and everything that has happened on it."""

import socket
import time
from collections.abc import Callable

from sedge_protocol.mqtt import Connected, Disconnected, LinkEvent, MqttLink, Received

WAIT_S = 15.0


class Driven:
    """A link and everything that has happened on it."""

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
        sock = client.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)


def drive(done: Callable[[], bool], *links: Driven) -> None:
    """Step the links until ``done``."""
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end, [driven.events[-3:] for driven in links]
        for driven in links:
            driven.step()
        time.sleep(0.001)


def settle(driven: Driven) -> None:
    """Until the broker has done all that it was asked: it answers one client's packets in order."""
    driven.link.send("settled", b"", 1)
    drive(lambda: driven.link._unwritten == 0, driven)


def wait(*links: Driven) -> None:
    """Give what should not come the time to come."""
    end = time.monotonic() + 0.1
    drive(lambda: time.monotonic() > end, *links)
