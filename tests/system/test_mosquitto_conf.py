"""cloud/mosquitto.conf with real certificates: who gets in, and to which topics."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.bench.parts.real_fleet import free_port, start_mosquitto

from sedge_cloud.admin.templates import MOSQUITTO_LIMITS
from sedge_protocol.errors import LinkError
from sedge_protocol.host.mqtt import BrokerSettings, Connected, Disconnected, MqttLink, Received
from sedge_protocol.host.probe import probe
from sedge_protocol.wire.frame import HEADER, MAX_BODY_BYTES
from sedge_protocol.wire.topics import all_up, blob, down, hint, shard_of, up

CONF = Path(__file__).parents[2] / "cloud" / "mosquitto.conf"
FLEET = "home"
COORDINATOR = "coordinator-home"


def openssl(*words: str, cwd: Path) -> None:
    """Run openssl to a good end."""
    done = subprocess.run(["openssl", *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Authority:
    """A certificate authority of openssl's, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        self._ec = ec
        openssl(
            "req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2",
            "-subj", "/CN=Sedge test authority", cwd=folder,
        )  # fmt: skip
        (folder / "index.txt").touch()
        (folder / "crlnumber").write_text("01\n")
        (folder / "serial").write_text("01\n")
        (folder / "openssl.cnf").write_text(
            "[ca]\ndefault_ca = own\n[own]\ndatabase = index.txt\ncrlnumber = crlnumber\n"
            "serial = serial\nnew_certs_dir = .\ncertificate = ca.crt\nprivate_key = ca.key\n"
            "default_md = sha256\ndefault_days = 2\ndefault_crl_days = 2\npolicy = any\n"
            "copy_extensions = copy\n[any]\ncommonName = supplied\n"
        )
        self.revoke()

    def issue(self, name: str) -> None:
        """A key and a certificate for this common name, valid for 127.0.0.1."""
        openssl(
            "req", "-new", *self._ec, "-keyout", f"{name}.key", "-out", f"{name}.csr",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", cwd=self.folder,
        )  # fmt: skip
        openssl(
            "ca", "-config", "openssl.cnf", "-batch", "-notext", "-in", f"{name}.csr",
            "-out", f"{name}.crt", cwd=self.folder,
        )  # fmt: skip

    def revoke(self, *names: str) -> None:
        """A list of the revoked, with these added."""
        for name in names:
            openssl("ca", "-config", "openssl.cnf", "-revoke", f"{name}.crt", cwd=self.folder)
        openssl("ca", "-config", "openssl.cnf", "-gencrl", "-out", "ca.crl", cwd=self.folder)


class Broker:
    """Mosquitto with the shipped configuration, its paths and port changed and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "pki")
        for name in ("broker", COORDINATOR, "pi-1", "pi-2", "stolen"):
            self.authority.issue(name)
        self.authority.revoke("stolen")
        self.port = free_port()
        text = CONF.read_text()
        (folder / "acl").write_text(acl_in(text))
        pki = self.authority.folder
        for old, new in {
            "listener 8883": f"listener {self.port} 127.0.0.1",
            "/etc/sedge/acl": str(folder / "acl"),
            "/etc/sedge/": f"{pki}/",
        }.items():
            assert old in text
            text = text.replace(old, new)
        if os.getuid() == 0:  # it would become a user who cannot read our temporary files
            text = "user root\n" + text
        (folder / "mosquitto.conf").write_text(text)
        self.log = folder / "log"
        self.process = start_mosquitto(folder / "mosquitto.conf", self.log, self.port)

    def settings(self, user: str, name: str = "", certificate: bool = True) -> BrokerSettings:
        """How this device connects."""
        pki = self.authority.folder
        own = (str(pki / f"{user}.crt"), str(pki / f"{user}.key")) if certificate else (None, None)
        url = f"mqtts://127.0.0.1:{self.port}"
        return BrokerSettings(url, name or user, user, None, str(pki / "ca.crt"), *own)


def acl_in(text: str) -> str:
    """The ACL file that the configuration's own comment gives."""
    rules = re.findall(r"^#   ((?:user|topic|pattern) .*)$", text, re.MULTILINE)
    assert len(rules) == 9
    return "\n".join(rules) + "\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The shipped configuration at work."""
    broker = Broker(tmp_path_factory.mktemp("tls"))
    yield broker
    broker.process.terminate()
    broker.process.wait(timeout=10)


class Client:
    """A connected link and what it hears."""

    def __init__(self, settings: BrokerSettings, *topics: str) -> None:
        self.link = MqttLink(settings, topics)
        self.heard: list[Received] = []
        self.cut = ""
        self.limit = 0
        self.wait(lambda: self.limit > 0, "connected")
        self.wait(lambda: False, "", 0.2)  # subscriptions are answered meanwhile

    def step(self) -> None:
        """Take what has come."""
        for event in self.link.step():
            if isinstance(event, Received):
                self.heard.append(event)
            elif isinstance(event, Disconnected):
                self.cut = event.reason
            else:
                assert isinstance(event, Connected)
                self.limit = event.max_packet_bytes

    def wait(self, condition: object, what: str, seconds: float = 10.0) -> None:
        """Step until a condition holds; without a name it may not."""
        deadline = time.monotonic() + seconds
        assert callable(condition)
        while not condition():
            self.step()
            if time.monotonic() > deadline:
                assert not what, f"not {what}: {self.cut}"
                return
            time.sleep(0.005)


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
    other = Authority(tmp_path / "other")
    other.issue("pi-1")
    good = broker.settings("pi-1")
    forged = BrokerSettings(
        good.url, "pi-1", "pi-1", None, good.ca_file,
        str(other.folder / "pi-1.crt"), str(other.folder / "pi-1.key"),
    )  # fmt: skip
    for refused in (broker.settings("pi-1", certificate=False), broker.settings("stolen"), forged):
        with pytest.raises(LinkError):
            probe(refused, down(FLEET, refused.name))


# paho leaves a socket whose handshake failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_of_another_authority_is_not_believed(broker: Broker, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    good = broker.settings("pi-1")
    mistrustful = BrokerSettings(
        good.url, "pi-1", "pi-1", None, str(other.folder / "ca.crt"), good.cert_file, good.key_file
    )
    with pytest.raises(LinkError, match="certificate verify failed"):
        probe(mistrustful, down(FLEET, "pi-1"))


def test_nobody_is_pushed_out_by_another_with_a_certificate(broker: Broker) -> None:
    """Not by one that claims its name (RELIABILITY: hijack), nor by a doctor of its own."""
    victim = Client(broker.settings("pi-1"), down(FLEET, "pi-1"))
    impostor = Client(broker.settings("pi-2", name="pi-1"), down(FLEET, "pi-2"))
    probe(broker.settings("pi-1"), down(FLEET, "pi-1"))
    victim.wait(lambda: False, "", 0.3)
    assert victim.link.up and not victim.cut
    assert re.search(r"as pi-1-[0-9a-f]{32} \(p\d, c1, k\d+, u'pi-2'\)", broker.log.read_text())
    for client in (victim, impostor):
        client.link.close()


def test_its_limits_are_those_of_a_first_configuration_and_of_the_emulator() -> None:
    lines = CONF.read_text().splitlines()
    assert set(MOSQUITTO_LIMITS.splitlines()) <= set(lines)


def test_topics_are_kept_apart(broker: Broker) -> None:
    cloud = Client(broker.settings(COORDINATOR), all_up(FLEET))
    shared = blob(FLEET, bytes(16))
    one = Client(broker.settings("pi-1"), down(FLEET, "pi-1"), shared)
    called = hint(FLEET, shard_of("pi-2"))
    two = Client(broker.settings("pi-2"), down(FLEET, "pi-2"), shared, called)
    elsewhere = up(FLEET, "pi-1").replace(shard_of("pi-1"), "3f")  # dropped by the coordinator
    for topic in (
        up(FLEET, "pi-1"), up(FLEET, "pi-2"), down(FLEET, "pi-1"), down(FLEET, "pi-2"), shared,
        up("other", "pi-1"), called, elsewhere,
    ):  # fmt: skip
        one.link.send(topic, b"from pi-1")
    for topic in (down(FLEET, "pi-1"), down(FLEET, "pi-2"), shared, called):
        cloud.link.send(topic, b"from the coordinator")
    for client in (one, cloud, two):
        client.wait(lambda c=client: len(c.heard) >= (3 if c is two else 2), "all heard")
        client.wait(lambda: False, "", 0.3)
    assert [m.topic for m in cloud.heard] == [up(FLEET, "pi-1"), elsewhere]
    for client, topics in (
        (one, {down(FLEET, "pi-1"), shared}),
        (two, {down(FLEET, "pi-2"), shared, called}),
    ):
        assert {m.topic for m in client.heard} == topics
        assert all(m.payload == b"from the coordinator" for m in client.heard)
        client.link.close()
    cloud.link.close()


def test_nobody_listens_to_everything(broker: Broker) -> None:
    everything = (all_up(FLEET), f"sedge/1/{FLEET}/device/+/up", f"sedge/1/{FLEET}/device/#")
    spy = Client(broker.settings("pi-2"), down(FLEET, "pi-2"), "#", *everything)
    one = Client(broker.settings("pi-1"), down(FLEET, "pi-1"))
    one.link.send(up(FLEET, "pi-1"), b"a secret")
    one.wait(lambda: False, "", 0.3)
    spy.wait(lambda: False, "", 0.3)
    assert spy.heard == []
    spy.link.close()
    one.link.close()


def test_the_largest_frame_passes(broker: Broker) -> None:
    cloud = Client(broker.settings(COORDINATOR), all_up(FLEET))
    one = Client(broker.settings("pi-1"), down(FLEET, "pi-1"))
    assert one.limit >= HEADER.size + MAX_BODY_BYTES
    frame = bytes(HEADER.size + MAX_BODY_BYTES)
    one.link.send(up(FLEET, "pi-1"), frame)
    one.wait(lambda: not one.link.wants_write(), "written")
    deadline = time.monotonic() + 10
    expected = Received(up(FLEET, "pi-1"), frame)
    while expected not in cloud.heard and time.monotonic() < deadline:
        one.step()
        cloud.step()
        time.sleep(0.005)
    assert cloud.heard == [expected]
    one.link.close()
    cloud.link.close()
