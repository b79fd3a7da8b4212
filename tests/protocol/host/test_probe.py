"""What a doctor learns from one connection; test_mqtt_hostile.py has brokers that refuse it."""

import pytest
from tests.protocol.driven import connected, fresh, settings, settle

from sedge_emulate.broker.brokers import Broker
from sedge_protocol.errors import LinkError
from sedge_protocol.host.probe import number_of, numbered, probe
from sedge_protocol.wire.frame import packet_bytes


def test_a_broker_that_lets_us_in(shared: Broker) -> None:
    """Also while a process of the same name runs, which notices nothing."""
    name = fresh()
    with connected(shared.url, name) as running:
        probe(settings(shared.url, name), "down")
        running.step()
        assert not running.losses()


def test_nobody_listens() -> None:
    with pytest.raises(LinkError, match="cannot reach"):
        probe(settings("mqtt://127.0.0.1:1"), "x")


def test_what_is_said_must_come_back(shared: Broker) -> None:
    topic, elsewhere = fresh(), fresh()
    probe(settings(shared.url, fresh()), topic, topic)
    with connected(shared.url, fresh(), elsewhere) as other:
        with pytest.raises(LinkError, match=f"nothing came back on {topic} within 0 s"):
            probe(settings(shared.url, fresh()), topic, elsewhere, 0.2)
        settle(other)
    assert len(other.received()) == 1


@pytest.mark.parametrize("packet", [0, 256, 16_000])
def test_a_numbered_message_is_as_long_as_asked(packet: int) -> None:
    said = numbered(b"token", 2**40, "down", packet)
    assert number_of(b"token", said) == 2**40
    least = len(b"token") + 8
    assert len(said) == least or packet_bytes("down", said) == packet
    for other in (said[: least - 1], b"taken" + said[5:]):
        assert number_of(b"token", other) is None
