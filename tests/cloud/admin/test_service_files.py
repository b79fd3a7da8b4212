"""`init --service` on a real Mosquitto: what it writes lets the coordinator and devices in, with TLS."""

import getpass
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cloud.helper import mode
from tests.cloud.stores import open_store
from tools.bench.parts.real_fleet import free_port, start_mosquitto

from sedge_cloud.admin.enrolment import add_device
from sedge_cloud.admin.service_files import ServicePaths, write_service_files
from sedge_cloud.config import broker_settings, load_cloud
from sedge_edge.config import load_config
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.probe import probe
from sedge_protocol.wire.topics import ITSELF, all_up, down, up

ME = getpass.getuser()


@dataclass
class Installed:
    """A machine with the files of a service, and a Mosquitto that reads Debian's conf.d."""

    places: ServicePaths
    port: int
    process: subprocess.Popen[bytes]


def places(root: Path) -> ServicePaths:
    (root / "etc/mosquitto/conf.d").mkdir(parents=True)
    return ServicePaths(root, ME, ME)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    root, port = tmp_path_factory.mktemp("root"), free_port()
    there = places(root)
    write_service_files("home", f"mqtts://127.0.0.1:{port}", ["pi.local", "192.0.2.7"], there)
    # Another program's listener, and what Debian's own file says before it includes the folder.
    (there.drop_in.parent / "other.conf").write_text(f"listener {free_port()}\n")
    main = root / "mosquitto.conf"
    main.write_text(f"user {ME}\npersistence true\npersistence_location {root}/\n"
                    f"include_dir {there.drop_in.parent}\n")  # fmt: skip
    process = start_mosquitto(main, root / "log", port)
    yield Installed(there, port, process)
    process.terminate()
    process.wait()


def test_a_fleet_at_home_has_tls(installed: Installed, tmp_path: Path) -> None:
    cloud = load_cloud(installed.places.etc / "cloud.toml")
    assert Path(cloud.state_dir) == installed.places.state
    probe(broker_settings(cloud), all_up("home"), up("home", ITSELF))
    store = open_store(installed.places.state)
    folder = add_device(store, cloud, "pi-1", tmp_path / "pi-1")
    store.close()
    edge = load_config(folder / "edge.toml")
    assert edge.broker.url == f"mqtts://127.0.0.1:{installed.port}"
    assert edge.broker.ca_file == folder / "ca.pem"
    installed.process.send_signal(signal.SIGHUP)
    probe(edge.broker_settings(), down("home", "pi-1"))


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_follow_the_umask(tmp_path: Path, umask: int) -> None:
    there = places(tmp_path)
    before = os.umask(umask)
    try:
        write_service_files("home", None, ["pi.local"], there)
    finally:
        os.umask(before)
    assert {mode(path) for path in (there.etc, there.broker)} == {0o755}
    public = there.etc / "cloud.toml", there.etc / "ca.pem", there.drop_in
    assert {mode(path) for path in public} == {0o644}
    assert mode(there.state) == 0o700
    secrets = {path.name: path for path in there.broker.iterdir()}
    assert secrets.keys() == {"acl", "passwords", "broker.crt", "broker.key"}
    for path in (*secrets.values(), there.etc / "coordinator-password", there.etc / "ca.key"):
        assert mode(path) == 0o600


def test_the_certificate_names_the_hosts(installed: Installed) -> None:
    text = subprocess.run(
        ["openssl", "x509", "-noout", "-text", "-in", installed.places.broker / "broker.crt"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in ("DNS:pi.local", "IP Address:192.0.2.7", "DNS:localhost", "IP Address:127.0.0.1"):
        assert name in text


def test_without_tls(tmp_path: Path) -> None:
    there = places(tmp_path)
    assert write_service_files("home", "mqtt://pi.local", None, there) == "mqtt://pi.local"
    assert "listener 1883\n" in there.drop_in.read_text()
    cloud = load_cloud(there.etc / "cloud.toml")
    assert (cloud.broker.url, cloud.broker.ca_file) == ("mqtt://127.0.0.1:1883", None)


@pytest.mark.parametrize(
    ("url", "hosts", "message"),
    [
        (None, ["pi.local:8883"], "--tls: found 'pi.local:8883', expected a host name"),
        ("mqtt://pi.local", ["pi.local"], "--url: found 'mqtt://pi.local', expected mqtts://host"),
        ("mqtts://pi.local", None, "expected mqtt://host"),
    ],
)
def test_what_it_refuses(
    tmp_path: Path, url: str | None, hosts: Sequence[str] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        write_service_files("home", url, hosts, places(tmp_path))
    assert not (tmp_path / "etc/sedge").exists()


def test_what_is_there_stays(tmp_path: Path) -> None:
    there = places(tmp_path)
    there.drop_in.write_text("mine")
    with pytest.raises(ConfigError, match="expected none; move it away"):
        write_service_files("home", None, None, there)
    shutil.rmtree(there.drop_in.parent)
    with pytest.raises(ConfigError, match="apt install mosquitto"):
        write_service_files("home", None, None, there)


def test_a_user_that_is_missing(tmp_path: Path) -> None:
    places(tmp_path)
    with pytest.raises(ConfigError, match="useradd --system nobody-like-this"):
        write_service_files("home", None, None, ServicePaths(tmp_path, "nobody-like-this", ME))
