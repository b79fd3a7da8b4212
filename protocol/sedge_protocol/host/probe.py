"""A single connection to the broker, with which a doctor checks whether it works.

It has a client id of its own and no will: it takes no session from a process that runs under the same
account.
"""

import secrets
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
)

# How long a subscription that is refused, or a question, may take before it is told or asked again.
SETTLED_S = 0.5
AGAIN_S = 2.0


class NoAnswer(LinkError):
    """The broker let us in, and nothing came back."""


def probe(
    settings: BrokerSettings,
    topic: str,
    question: str | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> None:
    """Connect once and subscribe to a topic. Raises ``LinkError``, which says why it failed.

    With ``question``, a topic, a random message is sent there and must come back on ``topic``.
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


def ask(
    settings: BrokerSettings,
    topic: str,
    question: tuple[str, bytes],
    answers: Callable[[bytes], bool],
    timeout_s: float,
) -> None:
    """Send a message (topic, payload) until ``answers`` accepts one that comes on ``topic``.

    Raises ``LinkError`` when the broker refuses us or the message, ``NoAnswer`` after ``timeout_s``, and
    what ``answers`` raises.
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
        raise NoAnswer(f"nothing comes back on {topic} within {timeout_s:.0f} s")
    finally:
        link.close()
