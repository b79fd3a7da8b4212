"""Passwords, access lists and TLS, on a Mosquitto set up as a fleet's would be."""

import getpass
import os
import re
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from tests.protocol.driven import WAIT_S, Driven, drive, settle, wait
from tests.protocol.driven import quick as quick
from tests.protocol.tls_proxy import tls_proxy
from tools.bench.parts.certificates import make_ca, make_certificate

from sedge_cloud.admin.templates import MOSQUITTO
from sedge_cloud.broker.access import ACL
from sedge_cloud.broker.accounts import add_passwords
from sedge_cloud.broker.child import find_mosquitto
from sedge_cloud.broker.ports import LOOPBACK, on_free_port
from sedge_emulate.broker import brokers as broker_module
from sedge_emulate.broker.brokers import Broker
from sedge_protocol.errors import ConfigError
from sedge_protocol.host import mqtt
from sedge_protocol.host.mqtt import BrokerSettings, MqttLink, Received
from sedge_protocol.wire import topics
from sedge_protocol.wire.keys import DeviceKeys

FLEET, COORDINATOR = "home", "coordinator-home"
SECRETS = {name: bytes([number]) * 32 for number, name in enumerate(("pi-1", "pi-2"), 1)}
UP, DOWN = topics.up(FLEET, "pi-1"), topics.down(FLEET, "pi-1")

# What `sedge-cloud init` writes has one listener; this is a second one, encrypted.
TLS_LISTENER = """\
listener {tls} 127.0.0.1
cafile {folder}/ca.crt
certfile {folder}/broker.crt
keyfile {folder}/broker.key
require_certificate true
use_identity_as_username true
tls_version tlsv1.2
allow_anonymous false
acl_file {folder}/broker-acl
"""
# What a network that lets only the web through needs: websockets. A proxy in front of it ends TLS.
WEB_LISTENER = """\
listener {ws} 127.0.0.1
protocol websockets
allow_anonymous false
password_file {folder}/broker-passwords
acl_file {folder}/broker-acl
"""


@dataclass(frozen=True)
class Secure:
    """A broker with passwords on one port and certificates on another, and links to it."""

    url: str
    tls_url: str
    web_urls: dict[str, str]
    folder: Path
    links: list[Driven] = field(default_factory=list[Driven])

    def linked(self, settings: BrokerSettings, *topics_: str) -> Driven:
        self.links.append(Driven(MqttLink(settings, topics_)))
        return self.links[-1]

    def coordinator(self, **how: str) -> Driven:
        settings = self.by_password(COORDINATOR, "a password of the coordinator")
        return self.linked(replace(settings, **how), topics.all_up(FLEET))

    def by_password(self, name: str, password: str | None = None) -> BrokerSettings:
        return BrokerSettings(
            self.url, name, name, password or DeviceKeys.of(SECRETS[name]).password
        )

    def by_certificate(self, name: str, ca: str = "ca") -> BrokerSettings:
        folder = self.folder
        own = str(folder / f"{name}.crt"), str(folder / f"{name}.key")
        return BrokerSettings(self.tls_url, name, None, None, str(folder / f"{ca}.crt"), *own)


@pytest.fixture
def secure(broker: Secure) -> Iterator[Secure]:
    """Its links are closed after each test."""
    yield broker
    while broker.links:
        broker.links.pop().link.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    ci = os.environ.get("CI") == "true"
    if (find_mosquitto() is None or shutil.which("openssl") is None) and not ci:
        pytest.skip("Mosquitto or openssl is not installed")
    folder = tmp_path_factory.mktemp("secure")
    for ca in ("ca", "rogue"):
        make_ca(folder, ca)
    make_certificate(folder, "broker", "ca", "IP:127.0.0.1")
    for name in ("pi-1", "pi-2"):
        make_certificate(folder, name, "ca")
    make_certificate(folder, "stranger", "rogue")
    add_passwords(folder / "broker-passwords", {COORDINATOR: "a password of the coordinator"})
    for name, secret in SECRETS.items():
        add_passwords(folder / "broker-passwords", {name: DeviceKeys.of(secret).password})
    (folder / "broker-acl").write_text(ACL.format(user=COORDINATOR, fleet=FLEET))
    with pytest.MonkeyPatch.context() as patch:
        tls, ws = (on_free_port(lambda port: None) for _ in range(2))
        port = f"{{port}} {LOOPBACK}"
        text = MOSQUITTO.format(
            port=port,
            passwords=folder / "broker-passwords",
            acl=folder / "broker-acl",
            user=getpass.getuser(),
            pid=folder / "mosquitto.pid",
        )
        text += TLS_LISTENER.format(folder=folder, tls=tls)
        text += WEB_LISTENER.format(folder=folder, ws=ws)
        patch.setattr(broker_module, "_SETTINGS", text)
        with Broker() as broker, tls_proxy(folder / "broker.crt", folder / "broker.key", ws) as wss:
            web = {"wss": f"wss://127.0.0.1:{wss}", "ws": f"ws://127.0.0.1:{ws}/mqtt"}
            yield Secure(broker.url, f"mqtts://127.0.0.1:{tls}", web, folder)


@pytest.mark.parametrize("password", ["wrong", DeviceKeys.of(SECRETS["pi-2"]).password])
def test_a_wrong_password_is_told(secure: Secure, password: str) -> None:
    driven = secure.linked(secure.by_password("pi-1", password))
    drive(lambda: bool(driven.losses()), driven)
    assert driven.losses()[0].reason == f"{secure.url} refused 'pi-1': Not authorized"
    assert password not in str(driven.losses())


def packet(kind: int, *parts: bytes) -> bytes:
    """An MQTT packet; parts that are texts carry their lengths."""
    body = b"".join(parts)
    assert len(body) < 128
    return bytes([kind, len(body)]) + body


def text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def intrude(secure: Secure, client_id: str, *login: str) -> bytes:
    """One CONNECT of MQTT 3.1.1 under this client id, with or without a login; the broker's answer."""
    flags = bytes([0xC2 if login else 0x02])  # clean session
    words = [text(word.encode()) for word in (client_id, *login)]
    connect = packet(0x10, text(b"MQTT"), b"\x04", flags, b"\x00\x1e", *words)
    host, port, *_ = BrokerSettings(secure.url, "").endpoint()
    with socket.create_connection((host, port), timeout=WAIT_S) as stranger:
        stranger.sendall(connect)
        return stranger.recv(64)


@pytest.mark.parametrize("login", [(), ("pi-2", DeviceKeys.of(SECRETS["pi-2"]).password)])
def test_naming_a_client_id_does_its_owner_no_harm(secure: Secure, login: tuple[str, ...]) -> None:
    """Mosquitto 2.0.11 once left them deaf after their next connection, or threw them out."""
    device, coordinator = secure.linked(secure.by_password("pi-1"), DOWN), secure.coordinator()
    drive(lambda: device.link.up and coordinator.link.up, device, coordinator)
    for name in ("pi-1", COORDINATOR):
        assert intrude(secure, name, *login)[0] == 0x20  # CONNACK
    wait(device, coordinator)
    assert not device.losses() and not coordinator.losses()
    for driven in (device, coordinator):
        driven.cut()
        drive(lambda d=driven: bool(d.losses()) and d.link.up, driven)  # type: ignore[misc]
        settle(driven)
    device.link.send(UP, b"heard?")
    drive(lambda: bool(coordinator.received()), device, coordinator)
    coordinator.link.send(DOWN, b"heard!")
    drive(lambda: bool(device.received()), device, coordinator)


def test_a_burst_that_overflows_the_broker_does_not_close_the_window(secure: Secure) -> None:
    """A full queue for the coordinator, and what the coordinator says meanwhile to everybody."""
    device, coordinator = secure.linked(secure.by_password("pi-1"), DOWN), secure.coordinator()
    rogue = secure.linked(secure.by_password("pi-2"))
    everyone = (device, coordinator, rogue)
    drive(lambda: all(driven.link.up for driven in everyone), *everyone)
    settle(device)
    rogue_up, filler = topics.up(FLEET, "pi-2"), bytes(100_000)
    for _ in range(400):  # the sockets' buffers, then the 200 packets that may wait
        rogue.link.send(rogue_up, filler)
        drive(lambda: rogue.link.room > 0, rogue, device)
    settle(rogue)
    for _ in range(2 * mqtt.WINDOW):
        coordinator.link.send(DOWN, b"an answer")
    drive(lambda: not coordinator.link.wants_write(), device, coordinator, rogue)
    wait(*everyone)
    wait(*everyone)
    assert 0 < len(coordinator.received()) < 400  # or the queue was never full
    assert coordinator.link.room == mqtt.WINDOW
    device.link.send(UP, b"after it")
    drive(lambda: Received(UP, b"after it") in coordinator.received(), *everyone)
    heard = len(device.received())
    coordinator.link.send(DOWN, b"after it")
    drive(lambda: len(device.received()) > heard, *everyone)


def test_packets_that_share_a_tls_record_are_all_read(secure: Secure) -> None:
    """Bytes that TLS has decrypted already do not make the socket readable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secure.folder / "broker.crt", secure.folder / "broker.key")
    accepted, message = b"\x20\x03\x00\x00\x00", b"\x30\x05\x00\x01t\x00x"

    def serve() -> None:
        connection, _ = server.accept()
        with context.wrap_socket(connection, server_side=True) as encrypted:
            encrypted.recv(4096)
            encrypted.sendall(accepted + 5 * message)
            ended.wait(WAIT_S)

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        url = f"mqtts://127.0.0.1:{server.getsockname()[1]}"
        driven = secure.linked(BrokerSettings(url, "pi-1", ca_file=str(secure.folder / "ca.crt")))
        try:
            drive(lambda: len(driven.received()) == 5, driven)
        finally:
            ended.set()
            thread.join()


def test_large_messages_pass_through_tls(secure: Secure) -> None:
    topic = topics.blob(FLEET, bytes(16))
    device = secure.linked(secure.by_certificate("pi-1"), topic)
    coordinator = secure.coordinator()
    drive(lambda: device.link.up and coordinator.link.up, device, coordinator)
    settle(device)
    payload = np.random.default_rng(1).bytes(2**18)
    for _ in range(8):
        coordinator.link.send(topic, payload)
    drive(lambda: len(device.received()) == 8, device, coordinator)
    assert {event.payload for event in device.received()} == {payload}


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_both_sides_pass_through_websockets(secure: Secure, scheme: str) -> None:
    """Frames of many pieces both ways, counted at the socket, and a broker that hangs up."""
    ca = {"ca_file": str(secure.folder / "ca.crt")} if scheme == "wss" else {}
    url = secure.web_urls[scheme]
    device = secure.linked(replace(secure.by_password("pi-1"), url=url, **ca), DOWN)
    coordinator = secure.coordinator(url=url, **ca)
    drive(lambda: device.link.up and coordinator.link.up, device, coordinator)
    settle(device)
    settle(coordinator)
    payload = np.random.default_rng(1).bytes(2**16)  # its length takes the longest form
    coordinator.link.send(DOWN, payload)
    device.link.send(UP, payload)
    both = (device, coordinator)
    drive(lambda: all(driven.received() for driven in both), *both)
    assert [event.payload for driven in both for event in driven.received()] == [payload] * 2
    counted = device.link.measure()
    assert counted.bytes_sent > len(payload) < counted.bytes_received
    device.cut()
    drive(lambda: bool(device.losses()) and device.link.up, *both)


def of_another_name(secure: Secure) -> BrokerSettings:
    url = secure.tls_url.replace("127.0.0.1", "localhost")
    return replace(secure.by_certificate("pi-1"), url=url)


def without_a_certificate(secure: Secure) -> BrokerSettings:
    return replace(secure.by_certificate("pi-1"), cert_file=None, key_file=None)


def encrypted_at_a_plain_port(secure: Secure) -> BrokerSettings:
    return replace(secure.by_certificate("pi-1"), url=secure.url.replace("mqtt:", "mqtts:"))


def plain_at_the_websockets_port(secure: Secure) -> BrokerSettings:
    url = secure.web_urls["ws"].replace("ws:", "mqtt:").removesuffix("/mqtt")
    return BrokerSettings(url, "pi-1")


def websockets_at_a_plain_port(secure: Secure) -> BrokerSettings:
    return replace(secure.by_password("pi-1"), url=secure.url.replace("mqtt:", "ws:"))


UNTRUSTED: list[tuple[Callable[[Secure], BrokerSettings], str]] = [
    (
        lambda secure: secure.by_certificate("pi-1", ca="rogue"),
        "cannot reach mqtts:.* verify failed",
    ),
    (of_another_name, "certificate verify failed"),
    (lambda secure: secure.by_certificate("stranger"), "refuses us: our .* by another authority"),
    (without_a_certificate, "refuses us: it requires a certificate"),
    (lambda secure: BrokerSettings(secure.tls_url.replace("mqtts", "mqtt"), "pi-1"), ""),
    (encrypted_at_a_plain_port, ""),
    (plain_at_the_websockets_port, ""),
    (websockets_at_a_plain_port, ""),
]


# paho leaves the socket of a handshake that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("settings", "reason"), UNTRUSTED)
def test_two_who_do_not_trust_or_understand_each_other_do_not_connect(
    secure: Secure, settings: Callable[[Secure], BrokerSettings], reason: str
) -> None:
    driven = secure.linked(settings(secure))
    drive(lambda: len(driven.losses()) == 2, driven)
    assert driven.link.counters.connections == 0
    assert all(re.search(reason, loss.reason) for loss in driven.losses())


def test_certificate_files_that_cannot_be_read(secure: Secure, tmp_path: Path) -> None:
    (tmp_path / "empty.crt").write_bytes(b"")
    for file in (tmp_path / "missing.crt", tmp_path / "empty.crt"):
        link = MqttLink(BrokerSettings(secure.tls_url, "pi-1", ca_file=str(file)), ())
        with pytest.raises(ConfigError, match="readable certificate files"):
            link.step()


def test_certificates_may_be_renewed_while_the_link_lives(secure: Secure, tmp_path: Path) -> None:
    """For a moment there is none: no reason for an agent to end in the middle of a training."""
    real, ca = secure.folder / "ca.crt", tmp_path / "ca.crt"
    shutil.copy(real, ca)
    driven = secure.linked(replace(secure.by_certificate("pi-1"), ca_file=str(ca)), DOWN)
    drive(lambda: driven.link.up, driven)
    ca.unlink()
    driven.cut()
    drive(lambda: len(driven.losses()) >= 2, driven)
    assert "readable certificate files" in driven.losses()[-1].reason
    shutil.copy(real, ca)
    drive(lambda: driven.link.up, driven)
