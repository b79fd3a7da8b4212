"""The gate between a client and the broker."""

import socket
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

import pytest

from sedge_conformance.shell import Gate


@pytest.fixture
def broker() -> Iterator[socket.socket]:
    """Where a broker listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@contextmanager
def connected(gate: Gate, broker: socket.socket) -> Generator[tuple[socket.socket, socket.socket]]:
    """A client that has got through, and the broker's end of its connection."""
    with socket.create_connection(("127.0.0.1", gate.port), timeout=10) as client:
        accepted, _ = broker.accept()
        with accepted:
            accepted.settimeout(10)
            client.sendall(b"hello")
            assert accepted.recv(16) == b"hello"
            accepted.sendall(b"welcome")
            assert client.recv(16) == b"welcome"
            yield client, accepted


class Failing:
    """A listener of which one ``accept`` fails, as when a client has gone before it was let in."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.failures = 0

    def accept(self) -> tuple[socket.socket, object]:
        if not self.failures:
            self.failures += 1
            raise ConnectionAbortedError("a client that has gone")
        return self._listener.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)


def test_a_connection_that_breaks_off_too_early_does_not_shut_the_gate(
    broker: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Gate(0, broker.getsockname())) as gate:
        failing = Failing(gate._listener)
        monkeypatch.setattr(gate, "_listener", failing)
        with connected(gate, broker):  # its ``accept`` had begun already
            pass
        with connected(gate, broker):
            assert failing.failures == 1


def test_who_is_cut_off_may_come_again_until_the_gate_is_closed(broker: socket.socket) -> None:
    gate = Gate(0, broker.getsockname())
    with connected(gate, broker) as ends:
        gate.cut()
        assert [end.recv(16) for end in ends] == [b"", b""]
    with connected(gate, broker):
        gate.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", gate.port), timeout=10)
