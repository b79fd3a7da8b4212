"""amqtt as a guest in this process: it keeps quiet and leaves nothing (test_broker.py has its service)."""

import logging
import threading

import pytest

from sedge_emulate.broker import amqtt_broker
from sedge_emulate.broker.amqtt_broker import AmqttBroker
from sedge_protocol.errors import LinkError


def test_its_log_goes_to_its_file(capfd: pytest.CaptureFixture[str]) -> None:
    with AmqttBroker() as broker:
        assert broker.log_path.read_text() == ""
        logging.getLogger("amqtt.broker").warning("a client misbehaved")
        assert "a client misbehaved" in broker.log_path.read_text()
    assert capfd.readouterr() == ("", "")


def test_nothing_is_left_behind() -> None:
    logger = logging.getLogger("amqtt")
    threads, handlers = threading.active_count(), list(logger.handlers)
    with AmqttBroker() as broker:
        assert threading.active_count() > threads
        assert not logger.propagate
    assert threading.active_count() == threads
    assert (logger.handlers, logger.propagate) == (handlers, True)
    assert not broker.log_path.parent.exists()


def test_a_broker_that_never_starts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # An address of no machine (RFC 5737).
    monkeypatch.setattr(amqtt_broker, "LOOPBACK", "192.0.2.1")
    threads = threading.active_count()
    broker = AmqttBroker()
    with pytest.raises(LinkError, match="amqtt on port"), broker:
        pass
    assert threading.active_count() == threads
    assert not broker.log_path.parent.exists()
    assert logging.getLogger("amqtt").propagate
