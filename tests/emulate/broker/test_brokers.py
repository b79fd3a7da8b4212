"""The brokers: they serve, they die, they come back on the same port, and how one is chosen."""

import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.enums import MQTTProtocolVersion as Version
from tests.fleet import is_alive

from sedge_cloud.broker import child
from sedge_cloud.broker.child import find_mosquitto
from sedge_emulate.broker import brokers as broker_module
from sedge_emulate.broker.brokers import AmqttBroker, Broker, ExternalBroker, open_broker
from sedge_protocol.errors import ConfigError, LinkError

_WAIT_S = 10.0


def require_mosquitto() -> None:
    if find_mosquitto() is None and os.environ.get("CI") != "true":
        pytest.skip("Mosquitto is not installed")


@pytest.fixture
def mosquitto() -> Iterator[Broker]:
    require_mosquitto()
    with Broker() as broker:
        yield broker


@pytest.fixture(params=["mosquitto", "amqtt"])
def own(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Each of the brokers that we start ourselves."""
    if request.param == "mosquitto":
        require_mosquitto()
    with Broker() if request.param == "mosquitto" else AmqttBroker() as broker:
        assert broker.kind == request.param
        yield broker


def setting(event: threading.Event) -> Callable[..., None]:
    """A callback that sets the event."""

    def callback(*_: object) -> None:
        event.set()

    return callback


@contextmanager
def client(port: int, name: str, version: Version = Version.MQTTv311) -> Generator[Client]:
    """A connected client whose loop runs."""
    connected = threading.Event()
    made = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=version)
    made.on_connect = setting(connected)
    made.connect("127.0.0.1", port)
    made.loop_start()
    try:
        assert connected.wait(_WAIT_S), f"{name} was not accepted on port {port}"
        yield made
    finally:
        made.disconnect()
        made.loop_stop()


@contextmanager
def witness(port: int) -> Generator[tuple[Client, threading.Event]]:
    """A client, and the event of its losing the connection."""
    lost = threading.Event()
    with client(port, "witness") as made:
        made.on_disconnect = setting(lost)
        yield made, lost


def round_trip(port: int, payload: bytes, version: Version = Version.MQTTv311) -> bytes:
    """What a subscriber receives when ``payload`` is published with QoS 1."""
    subscribed, arrived = threading.Event(), threading.Event()
    received: list[bytes] = []

    def on_message(_: Client, __: Any, message: MQTTMessage) -> None:
        received.append(bytes(message.payload))
        arrived.set()

    with client(port, "subscriber", version) as subscriber:
        subscriber.on_subscribe = setting(subscribed)
        subscriber.on_message = on_message
        subscriber.subscribe("sedge/test", qos=1)
        assert subscribed.wait(_WAIT_S)
        with client(port, "publisher", version) as publisher:
            publisher.publish("sedge/test", payload, qos=1)
            assert arrived.wait(_WAIT_S), f"{len(payload)} bytes did not arrive"
    assert len(received) == 1
    return received[0]


def test_a_message_goes_round(own: Broker) -> None:
    payload = os.urandom(300_000)
    assert round_trip(own.port, payload) == payload
    assert own.url == f"mqtt://127.0.0.1:{own.port}"


def test_mosquitto_speaks_mqtt_5(mosquitto: Broker) -> None:
    payload = os.urandom(300_000)
    assert round_trip(mosquitto.port, payload, Version.MQTTv5) == payload


def test_killed_and_restarted(own: Broker) -> None:
    url, pid = own.url, own.pid
    with witness(own.port) as (_, lost):
        own.kill()
        assert lost.wait(_WAIT_S)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", own.port), 1)
    own.kill()
    assert not is_alive(pid) and own.pid is None
    own.restart()
    assert own.url == url
    assert round_trip(own.port, b"again") == b"again"


def test_restarting_a_running_broker_ends_it_and_cuts_its_clients(own: Broker) -> None:
    pid = own.pid
    with witness(own.port) as (_, lost):
        own.restart()
        assert lost.wait(_WAIT_S)
    assert not is_alive(pid)
    assert round_trip(own.port, b"again") == b"again"


def test_a_taken_port_is_reported_with_the_brokers_own_words(own: Broker) -> None:
    own.kill()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", own.port))
        with pytest.raises(LinkError, match=rf"{own.port}: .*[Aa]ddress already in use"):
            own.restart()
    own.restart()
    assert round_trip(own.port, b"x") == b"x"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_it_listens_on_the_loopback_alone(own: Broker) -> None:
    # Every other address of this machine is free to bind, so nobody listens there.
    with socket.socket() as other:
        other.bind(("127.0.0.2", own.port))


def test_oversized_packets_are_refused(mosquitto: Broker) -> None:
    with witness(mosquitto.port) as (sender, lost):
        sender.publish("sedge/test", bytes(400_001), qos=0)
        assert lost.wait(_WAIT_S)


def test_nothing_is_left_behind(own: Broker) -> None:
    pid, folder = own.pid, own.folder
    assert folder.is_dir()
    own.__exit__(None, None, None)
    assert not is_alive(pid)
    assert not folder.exists()
    # So that the fixture, too, has something to leave.
    own.__enter__()


def test_a_given_folder_keeps_the_log(mosquitto: Broker, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "broker"
    with Broker(folder) as second:
        assert second.port != mosquitto.port
        assert round_trip(second.port, b"x") == b"x"
    assert second.log_path == folder / "mosquitto.log"
    # A healthy broker has nothing to say.
    assert second.log_path.read_text() == ""


def test_a_broker_that_never_starts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: shutil.which("false"))
    broker = Broker()
    with pytest.raises(LinkError, match=r"exited while starting; .*/false said: nothing"), broker:
        pass
    assert (broker.pid, broker.folder.exists()) == (None, False)


def test_a_broker_takes_the_port_that_is_wanted_where_it_is_free(own: Broker) -> None:
    """Devices that have been told of it look for it there."""
    with type(own)(wanted=own.port) as other:
        assert other.port != own.port
    with type(own)(wanted=other.port) as again:
        assert again.port == other.port


def test_mosquitto_on_the_path_is_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("path", "sbin"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mosquitto").write_text("#!/bin/sh\n")
        (tmp_path / folder / "mosquitto").chmod(0o755)
    monkeypatch.setattr(child, "_FOLDERS", (str(tmp_path / "none"), str(tmp_path / "sbin")))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_mosquitto() == str(tmp_path / "path" / "mosquitto")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert find_mosquitto() == str(tmp_path / "sbin" / "mosquitto")
    monkeypatch.setattr(child, "_FOLDERS", ())
    assert find_mosquitto() is None


def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: "/usr/sbin/mosquitto")
    for choice in ("mosquitto", "amqtt"):
        wanting = open_broker(choice, 1234)
        assert isinstance(wanting, Broker) and wanting._wanted == 1234
    kinds = [open_broker(choice).kind for choice in ("auto", "mosquitto", "amqtt", "mqtt://host")]
    assert kinds == ["mosquitto", "mosquitto", "amqtt", "external"]
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: None)
    assert open_broker("auto").kind == "amqtt"
    with pytest.raises(ConfigError, match="apt-get install mosquitto"), open_broker("mosquitto"):
        pass
    # None is what looking for it gives where it is not installed.
    monkeypatch.setitem(sys.modules, "amqtt", None)
    expected = r"apt-get install mosquitto.*brew install mosquitto"
    with pytest.raises(ConfigError, match=expected), open_broker("auto"):
        pass


@pytest.mark.parametrize(
    "choice", ["", "mosquito", "http://host", "mqtt://", "mqtt://host:port", "mqtt://host:99999"]
)
def test_a_choice_that_is_none_is_refused(choice: str) -> None:
    with pytest.raises(ConfigError, match="broker: found"):
        open_broker(choice)


def test_an_external_broker_is_only_looked_at(mosquitto: Broker) -> None:
    with open_broker(mosquitto.url) as broker:
        assert (broker.kind, broker.url) == ("external", mosquitto.url)
    assert round_trip(mosquitto.port, b"still there") == b"still there"


def test_the_ports_of_the_schemes() -> None:
    assert ExternalBroker("mqtt://broker.example")._port == 1883
    assert ExternalBroker("mqtts://broker.example")._port == 8883
    assert ExternalBroker("mqtts://[::1]:1234")._host == "::1"
