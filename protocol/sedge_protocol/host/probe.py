"""Opens a single connection with which a doctor checks that the broker works.

It has its own client id and no will, so it does not take over the session of a running process that uses
the same account.
"""

import secrets
import struct
import time
from collections.abc import Callable

from sedge_protocol.errors import LinkError
from sedge_protocol.host.mqtt import (
    CONNECT_TIMEOUT_S,
    BrokerSettings,
    Connected,
    Disconnected,
    MqttLink,
    Received,
    TooLarge,
)
from sedge_protocol.wire.frame import packet_bytes
from sedge_protocol.wire.message_limit import LimitProbe

# How long the broker may take to refuse a subscription, and how long to wait before asking again.
SETTLED_S = 0.5
AGAIN_S = 2.0
_NUMBER = struct.Struct("<Q")


class NoAnswer(LinkError):
    """The broker accepted us, but no answer arrived."""


def probe(
    settings: BrokerSettings,
    topic: str,
    question: str | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> None:
    """Connect once and subscribe to ``topic``. Raises ``LinkError`` with the reason if that fails.

    If ``question``, another topic, is given, sends a random message there, which must come back on
    ``topic``.
    """
    if question is not None:
        asked = secrets.token_bytes(8)
        ask(settings, topic, (question, asked), lambda payload: payload == asked, timeout_s)
        return
    link = MqttLink(settings, (topic,))
    deadline = settled = time.monotonic() + timeout_s
    try:
        while time.monotonic() < min(deadline, settled):
            for event in link.step():
                if isinstance(event, Disconnected):
                    raise LinkError(event.reason)
                if isinstance(event, Connected):
                    settled = time.monotonic() + SETTLED_S
            time.sleep(0.02)
        if not link.up:
            raise LinkError(f"{settings.url} did not answer within {timeout_s:.0f} s")
    finally:
        link.close()


def numbered(token: bytes, number: int, topic: str, packet: int) -> bytes:
    """Make a numbered message to ourselves whose MQTT packet has about ``packet`` bytes, never more."""
    head = token + _NUMBER.pack(number)
    return head + bytes(max(0, packet - packet_bytes(topic, head)))


def number_of(token: bytes, payload: bytes) -> int | None:
    """Return the number in a message made by ``numbered``, or None for any other message."""
    if not payload.startswith(token) or len(payload) < len(token) + _NUMBER.size:
        return None
    number: int = _NUMBER.unpack_from(payload, len(token))[0]
    return number


def measure(
    settings: BrokerSettings,
    topic: str,
    make: Callable[[int, int], tuple[str, bytes]],
    number: Callable[[bytes], int | None],
    timeout_s: float,
) -> int:
    """Return the size in bytes of the largest MQTT packet that comes back on ``topic``.

    The search is in wire/message_limit.py. ``make`` returns the topic and payload of a message for a number
    and a packet size; ``number`` reads the number from a received message. Raises ``LinkError`` if the
    broker refuses us, ``NoAnswer`` if the result is not known after ``timeout_s``.
    """
    link, limits = MqttLink(settings, (topic,)), LimitProbe()
    deadline, why = time.monotonic() + timeout_s, ""
    try:
        while (now := time.monotonic()) < deadline:
            for event in link.step():
                match event:
                    case Connected():
                        limits.connected(event.max_packet_bytes, now)
                    case Disconnected():  # perhaps the message was too large: reconnect to find out
                        limits.disconnected()
                        why = event.reason
                    case Received():
                        if (found := number(event.payload)) is not None:
                            limits.came_back(found, now)
                    case TooLarge():
                        pass
            if limits.limit is not None:
                return limits.limit
            for one, size in limits.poll(now):
                link.send(*make(one, size))
            time.sleep(0.02)
        raise NoAnswer(why or f"nothing came back on {topic} within {timeout_s:.0f} s")
    finally:
        link.close()


def ask(
    settings: BrokerSettings,
    topic: str,
    question: tuple[str, bytes],
    answers: Callable[[bytes], bool],
    timeout_s: float,
) -> None:
    """Send a message (topic, payload) repeatedly until ``answers`` accepts one received on ``topic``.

    Raises ``LinkError`` if the broker refuses us or the message, ``NoAnswer`` after ``timeout_s``, and
    whatever ``answers`` raises.
    """
    link = MqttLink(settings, (topic,))
    deadline, again_at = time.monotonic() + timeout_s, 0.0
    try:
        while (now := time.monotonic()) < deadline:
            for event in link.step():
                if isinstance(event, Disconnected):
                    raise LinkError(event.reason)
                if isinstance(event, Received) and answers(event.payload):
                    return
            if link.up and now > again_at:
                again_at = now + AGAIN_S
                link.send(*question, confirmed=True)
            time.sleep(0.02)
        if not link.up:
            raise LinkError(f"{settings.url} did not answer within {timeout_s:.0f} s")
        raise NoAnswer(f"nothing came back on {topic} within {timeout_s:.0f} s")
    finally:
        link.close()
