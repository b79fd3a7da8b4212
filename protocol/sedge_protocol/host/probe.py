"""A single connection to the broker, with which a doctor checks whether it works."""

import secrets
import time

from sedge_protocol.errors import LinkError
from sedge_protocol.host.mqtt import (
    CONNECT_TIMEOUT_S,
    BrokerSettings,
    Connected,
    Disconnected,
    MqttLink,
    Received,
)


def probe(
    settings: BrokerSettings,
    topic: str,
    question: str | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> None:
    """Connect once and subscribe to a topic. Raises ``LinkError``, which says why it failed.

    With ``question``, a topic, a random message is sent there and must come back on ``topic``.
    """
    link = MqttLink(settings, (topic,))
    deadline = time.monotonic() + timeout_s
    settled, asked = deadline, secrets.token_bytes(8)
    try:
        while time.monotonic() < min(deadline, settled):
            for event in link.step():
                if isinstance(event, Disconnected):
                    raise LinkError(event.reason)
                if isinstance(event, Received) and event.payload == asked:
                    return
                if isinstance(event, Connected) and question is not None:
                    link.send(question, asked)
                elif isinstance(event, Connected):  # wait half a second for a refused subscription
                    settled = time.monotonic() + 0.5
            time.sleep(0.02)
        if not link.up:
            raise LinkError(f"{settings.url} did not answer within {timeout_s:.0f} s")
        if question is not None:
            raise LinkError(f"nothing comes back on {topic} within {timeout_s:.0f} s")
    finally:
        link.close()
