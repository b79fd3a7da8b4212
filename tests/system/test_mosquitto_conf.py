"""cloud/mosquitto.conf with real certificates: who gets in, and to which topics."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate
from tests.protocol.driven import Driven, drive, settle, wait
from tools.bench.parts.certificates import make_ca, make_certificate
from tools.bench.parts.real_fleet import free_port, start_mosquitto

from sedge_cloud.admin.templates import MOSQUITTO_LIMITS
from sedge_cloud.broker.access import access_list
from sedge_cloud.broker.certificates import Authority
from sedge_protocol.errors import LinkError
from sedge_protocol.host.mqtt import BrokerSettings, MqttLink
from sedge_protocol.host.probe import probe
from sedge_protocol.wire.topics import all_up, blob, down, hint, shard_of, up

CONF = Path(__file__).parents[2] / "cloud" / "mosquitto.conf"
FLEET = "home"
COORDINATOR = "coordinator-home"


class Broker:
    """Mosquitto with the shipped configuration, its paths and port changed and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.log = folder, free_port(), folder / "log"
        make_ca(folder, "ca")
        for name in ("broker", COORDINATOR, "pi-1", "pi-2", "stolen"):
            make_certificate(folder, name, "ca", "IP:127.0.0.1")
        stolen = load_pem_x509_certificate((folder / "stolen.crt").read_bytes()).serial_number
        authority = Authority.read(*((folder / f"ca.{end}").read_text() for end in ("key", "crt")))
        (folder / "ca.crl").write_text(authority.revocations([stolen.to_bytes(20)]))
        text = CONF.read_text()
        (folder / "acl").write_text(acl_in(text))
        for old, new in {
            "listener 8883": f"listener {self.port} 127.0.0.1",
            "/etc/sedge/": f"{folder}/",
        }.items():
            assert old in text
            text = text.replace(old, new)
        if os.getuid() == 0:  # it would become a user who cannot read our temporary files
            text = "user root\n" + text
        (folder / "mosquitto.conf").write_text(text)
        self.process = start_mosquitto(folder / "mosquitto.conf", self.log, self.port)
        self.links: list[Driven] = []

    def settings(self, user: str, name: str = "", folder: Path | None = None) -> BrokerSettings:
        """How this device connects, with the certificate in a folder."""
        own = (str((folder or self.folder) / f"{user}.{end}") for end in ("crt", "key"))
        url, ca = f"mqtts://127.0.0.1:{self.port}", str(self.folder / "ca.crt")
        return BrokerSettings(url, name or user, user, None, ca, *own)

    def linked(self, user: str, *topics: str, name: str = "") -> Driven:
        """A link that is up, with its subscriptions made."""
        driven = Driven(MqttLink(self.settings(user, name), topics))
        self.links.append(driven)
        drive(lambda: driven.link.up, driven)
        settle(driven)
        return driven


def acl_in(text: str) -> str:
    """The ACL file that the configuration's own comment gives."""
    return "\n".join(re.findall(r"^#   ((?:user|topic|pattern) .*)$", text, re.MULTILINE)) + "\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The shipped configuration at work."""
    broker = Broker(tmp_path_factory.mktemp("tls"))
    yield broker
    broker.process.terminate()
    broker.process.wait(timeout=10)


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    """Its links are closed after each test."""
    yield running
    while running.links:
        running.links.pop().link.close()


def test_it_parses_without_a_word(broker: Broker) -> None:
    found = [
        line for line in broker.log.read_text().splitlines() if "Warn" in line or "Err" in line
    ]
    # Every device may read blobs and hints: only a pattern says so; Mosquitto wonders at one without %u.
    known = ("should not be run as root", "ACL pattern 'sedge/1/home/blob/#' does not contain",
             "ACL pattern 'sedge/1/home/shard/+' does not contain")  # fmt: skip
    assert [line for line in found if not any(text in line for text in known)] == []


def test_a_certificate_is_the_way_in(broker: Broker, tmp_path: Path) -> None:
    """None, a revoked one and one of another authority are not."""
    probe(broker.settings("pi-1"), down(FLEET, "pi-1"))
    probe(broker.settings(COORDINATOR), all_up(FLEET))
    make_ca(tmp_path, "ca")
    make_certificate(tmp_path, "pi-1", "ca")
    without = replace(broker.settings("pi-1"), cert_file=None, key_file=None)
    for refused in (without, broker.settings("stolen"), broker.settings("pi-1", folder=tmp_path)):
        with pytest.raises(LinkError):
            probe(refused, down(FLEET, refused.name))


def test_nobody_is_pushed_out_by_another_with_a_certificate(broker: Broker) -> None:
    """Not by one that claims its name (RELIABILITY: hijack), nor by a doctor of its own."""
    victim = broker.linked("pi-1", down(FLEET, "pi-1"))
    broker.linked("pi-2", down(FLEET, "pi-2"), name="pi-1")
    probe(broker.settings("pi-1"), down(FLEET, "pi-1"))
    wait(victim)
    assert victim.link.up and not victim.losses()
    assert re.search(r"as pi-1-[0-9a-f]{32} \(p\d, c1, k\d+, u'pi-2'\)", broker.log.read_text())


def test_its_limits_and_access_list_are_those_of_a_first_configuration() -> None:
    lines = CONF.read_text().splitlines()
    assert set(MOSQUITTO_LIMITS.splitlines()) <= set(lines)
    assert acl_in(CONF.read_text()) == access_list(FLEET).replace("\n\n", "\n")


def test_topics_are_kept_apart(broker: Broker) -> None:
    """A device can neither write nor hear another's topics (fault S2), whatever it subscribes to."""
    cloud = broker.linked(COORDINATOR, all_up(FLEET))
    shared, called = blob(FLEET, bytes(16)), hint(FLEET, shard_of("pi-2"))
    one = broker.linked("pi-1", down(FLEET, "pi-1"), shared)
    everything = (all_up(FLEET), f"sedge/1/{FLEET}/device/+/up", f"sedge/1/{FLEET}/device/#", "#")
    two = broker.linked("pi-2", down(FLEET, "pi-2"), shared, called, *everything)
    elsewhere = up(FLEET, "pi-1").replace(shard_of("pi-1"), "3f")  # dropped by the coordinator
    for topic in (
        up(FLEET, "pi-1"), up(FLEET, "pi-2"), down(FLEET, "pi-1"), down(FLEET, "pi-2"), shared,
        up("other", "pi-1"), called, elsewhere,
    ):  # fmt: skip
        one.link.send(topic, b"from pi-1")
    for topic in (down(FLEET, "pi-1"), down(FLEET, "pi-2"), shared, called):
        cloud.link.send(topic, b"from the coordinator")
    for driven in broker.links:
        settle(driven)
    wait(*broker.links)
    assert [m.topic for m in cloud.received()] == [up(FLEET, "pi-1"), elsewhere]
    for driven, topics in (
        (one, {down(FLEET, "pi-1"), shared}),
        (two, {down(FLEET, "pi-2"), shared, called}),
    ):
        assert {m.topic for m in driven.received()} == topics
        assert {m.payload for m in driven.received()} == {b"from the coordinator"}
    with pytest.raises(LinkError, match="refused a message: Not authorized"):  # a doctor's words
        probe(broker.settings("pi-2"), down(FLEET, "pi-2"), up(FLEET, "pi-1"), 5.0)
