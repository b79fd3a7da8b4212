"""Devices are enrolled whole or not at all; passwords really work."""

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.cloud.helper import as_nobody, mode
from tests.cloud.stores import open_store
from tests.fleet import failing
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_cloud.admin import enrolment
from sedge_cloud.admin.enrolment import add_device, add_devices, join_text, reissue_device
from sedge_cloud.admin.revocation import revoke_device
from sedge_cloud.admin.templates import write_first_files
from sedge_cloud.broker.accounts import add_passwords
from sedge_cloud.config import BrokerConfig, CloudConfig, broker_settings, load_cloud
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import DeviceRow
from sedge_edge.config import load_config
from sedge_protocol.errors import ConfigError, LinkError, StorageError
from sedge_protocol.host import enrolment as device_files
from sedge_protocol.host.enrolment import Enrolment, parse_join_text
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.host.probe import probe
from sedge_protocol.wire.keys import DeviceKeys, parse_secret
from sedge_protocol.wire.topics import all_up, down

CLOUD = CloudConfig("bench", broker=BrokerConfig("mqtt://broker.example:1883"))


def test_a_device_gets_what_it_needs(store: Store, tmp_path: Path) -> None:
    folder = add_device(store, CLOUD, "pi-1", tmp_path / "deep" / "pi-1")
    assert folder == tmp_path / "deep" / "pi-1" and mode(folder) == 0o700
    assert {path.name for path in folder.iterdir()} == {"secret", "edge.toml"}
    secret = parse_secret((folder / "secret").read_text(), "")
    (row,) = store.devices()
    assert (row.device, row.secret, row.revoked) == ("pi-1", secret, False)
    edge = load_config(folder / "edge.toml")  # what the agent itself makes of it
    assert (edge.device, edge.fleet) == ("pi-1", "bench")
    assert edge.state_dir == folder / "state" and edge.secret_file == folder / "secret"
    settings = edge.broker_settings()
    assert (settings.url, settings.password) == (CLOUD.broker.url, DeviceKeys.of(secret).password)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_follow_the_umask(store: Store, tmp_path: Path, umask: int) -> None:
    """Nobody else may write any of the first files, and the service's user may read what is copied."""
    (tmp_path / "ca").write_text("authority")
    broker = BrokerConfig("mqtts://broker.example", ca_file=str(tmp_path / "ca"))
    before = os.umask(umask)
    try:
        add_device(store, CloudConfig("bench", broker=broker), "pi-1", tmp_path / "pi-1")
        new = Enrolment("pi-1", "bench", broker.url, bytes(32).hex(), certificate="PEM")
        new.replace_secret(tmp_path / "pi-1")
        write_first_files(tmp_path / "cloud", "bench", "mqtt://127.0.0.1:1883")
    finally:
        os.umask(before)
    private = {"secret", "coordinator-password", "broker-passwords", "broker-acl"}
    for folder in (tmp_path / "pi-1", tmp_path / "cloud"):
        assert not mode(folder) & 0o022
        for path in folder.iterdir():
            assert mode(path) == (0o600 if path.name in private else 0o644), path.name


def test_a_device_in_a_unit(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = add_device(store, CLOUD, "pi-1", tmp_path / "pi-1", service=True)
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (folder / "secret").rename(credentials / "sedge-secret")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    edge = load_config(folder / "edge.toml")
    assert edge.state_dir == Path("/var/lib/sedge") and edge.keys()


@pytest.mark.parametrize(
    ("url", "device_url", "with_ca"),
    [
        ("mqtts://broker.example", None, True),
        ("mqtt://127.0.0.1", "mqtts://broker.example", True),
        ("mqtts://broker.example", "mqtt://gateway.example", False),
    ],
)
def test_the_authority_comes_along_where_there_is_tls(
    store: Store, tmp_path: Path, url: str, device_url: str | None, with_ca: bool
) -> None:
    authority = tmp_path / "etc" / "fleet-ca.crt"
    authority.parent.mkdir()
    authority.write_text("PEM")
    cloud = CloudConfig("bench", broker=BrokerConfig(url, device_url, ca_file=str(authority)))
    folder = add_device(store, cloud, "pi-1", tmp_path / "pi-1")
    settings = load_config(folder / "edge.toml").broker_settings()
    assert settings.url == (device_url or url)
    assert settings.ca_file == (str(folder / "ca.pem") if with_ca else None)
    assert (folder / "ca.pem").exists() == with_ca
    told = parse_join_text(join_text(folder))
    assert isinstance(told, device_files.Enrolment)
    assert (told.device, told.fleet, told.url) == ("pi-1", "bench", settings.url)
    assert told.ca == ("PEM" if with_ca else None)
    assert told.secret == (folder / "secret").read_text().strip()


@pytest.mark.parametrize("url", ["mqtts://broker.example", "mqtt://broker.example"])
def test_a_device_is_told_of_its_own_certificate(store: Store, tmp_path: Path, url: str) -> None:
    cloud = CloudConfig("bench", broker=BrokerConfig(url, cert_file="own.crt", key_file="own.key"))
    text = (add_device(store, cloud, "pi-1", tmp_path / "pi-1") / "edge.toml").read_text()
    is_told = "with CN=pi-1:" in text and '# cert_file = "device.pem"' in text
    assert is_told is url.startswith("mqtts")
    load_config(tmp_path / "pi-1" / "edge.toml")


@pytest.mark.parametrize("name", ['our "own".crt', "secret", "edge.toml", "b\udcfc.crt"])
def test_the_authority_may_have_any_name(store: Store, tmp_path: Path, name: str) -> None:
    authority = tmp_path / "etc" / name
    authority.parent.mkdir()
    authority.write_text("PEM")
    url = "mqtts://broker.example"
    cloud = CloudConfig("bench", broker=BrokerConfig(url, ca_file=str(authority)))
    folder = add_device(store, cloud, "pi-1", tmp_path / "pi-1")
    config = load_config(folder / "edge.toml")
    assert config.broker_settings().ca_file == str(folder / "ca.pem")
    assert (folder / "ca.pem").read_text() == "PEM"
    assert config.keys() == DeviceKeys.of(store.devices()[0].secret)


@pytest.mark.parametrize(
    "device", ["", "Pi", "pi_1", "-pi", "p" * 49, "pi\n", "a/b", "..", "pi 1", "+"]
)
def test_an_id_that_no_device_may_have(store: Store, tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError, match="device: found "):
        add_device(store, CLOUD, device, tmp_path / "out")
    assert store.devices() == [] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("device", ["coordinator-bench", "coordinator-home", "boss"])
def test_no_device_has_a_coordinators_account(store: Store, tmp_path: Path, device: str) -> None:
    """Its line in the password file would take the place of the coordinator's."""
    passwords = tmp_path / "passwords"
    add_passwords(passwords, {device: "the coordinator's"})
    before = passwords.read_text()
    broker = BrokerConfig("mqtt://h", username="boss", device_password_file=str(passwords))
    cloud = CloudConfig("bench", broker=broker)
    with pytest.raises(ConfigError, match=f"device: found '{device}', expected another id: 'boss'"):
        add_device(store, cloud, device, tmp_path / "out")
    assert store.devices() == [] and passwords.read_text() == before
    assert not (tmp_path / "out").exists()


def test_an_id_that_is_taken_changes_nothing(store: Store, tmp_path: Path) -> None:
    add_device(store, CLOUD, "pi-1", tmp_path / "one")
    before = store.devices()
    with pytest.raises(ConfigError, match="device: found 'pi-1', expected an id that is not"):
        add_device(store, CLOUD, "pi-1", tmp_path / "two")
    store.revoke_device("pi-1")
    with pytest.raises(ConfigError, match="not enrolled"):  # the revoked stay revoked
        add_device(store, CLOUD, "pi-1", tmp_path / "two")
    assert not (tmp_path / "two").exists() and store.devices()[0].secret == before[0].secret


@pytest.mark.parametrize("revoked", [False, True])
def test_a_device_is_issued_anew(store: Store, tmp_path: Path, revoked: bool) -> None:
    """One row, its line in place of the old one's, and counts that begin anew with the new keys."""
    passwords = tmp_path / "passwords"
    cloud = CloudConfig("bench", broker=BrokerConfig(device_password_file=str(passwords)))
    add_device(store, cloud, "pi-1", tmp_path / "old")
    line = passwords.read_text()
    (old,) = store.devices()
    store.save_hello(old, 2**32 - 1, b"hello")
    if revoked:
        revoke_device(store, cloud, "pi-1")
        assert store.devices()[0].revoked and passwords.read_text().strip() == ""
    folder = reissue_device(store, cloud, "pi-1", tmp_path / "new")
    (row,) = store.devices()
    assert row == DeviceRow("pi-1", row.secret, False, 0, None, row.changed, row.enrolled)
    assert row.secret != old.secret
    assert parse_secret((folder / "secret").read_text(), "") == row.secret
    assert len(passwords.read_text().splitlines()) == 1 and passwords.read_text() != line
    store.save_hello(old, 2**32 - 1, b"hello")  # by one that has yet to hear of the new secret
    assert store.devices() == [row]


def test_a_folder_that_exists_is_left_alone(store: Store, tmp_path: Path) -> None:
    (tmp_path / "pi-1").mkdir()
    (tmp_path / "pi-1" / "secret").write_text("of another device")
    with pytest.raises(ConfigError, match=r"out: found .*pi-1', expected a folder that does not"):
        add_device(store, CLOUD, "pi-1", tmp_path / "pi-1")
    assert (tmp_path / "pi-1" / "secret").read_text() == "of another device"
    assert store.devices() == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        add_device(store, CLOUD, "pi-1", tmp_path / "file" / "pi-1")


def test_many_are_enrolled_at_once_or_not_at_all(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = tmp_path / "passwords"
    cloud = CloudConfig("bench", broker=BrokerConfig(device_password_file=str(passwords)))
    folders = {f"pi-{number}": tmp_path / f"pi-{number}" for number in range(300)}
    folders["pi-299"].mkdir()
    with pytest.raises(ConfigError, match="expected a folder that does not exist"):
        add_devices(store, cloud, folders)
    assert store.devices() == [] and list(tmp_path.glob("pi-*")) == [folders["pi-299"]]
    folders["pi-299"].rmdir()
    written: list[int] = []

    def count(path: Path, lines: Mapping[str, str]) -> None:
        written.append(len(lines))
        add_passwords(path, lines)

    monkeypatch.setattr(enrolment, "add_passwords", count)
    add_devices(store, cloud, folders)
    assert written == [300] and len(passwords.read_text().splitlines()) == 300
    assert {row.device for row in store.devices()} == set(folders)
    secrets = {(folder / "secret").read_text() for folder in folders.values()}
    assert len(secrets) == 300 and all(mode(f / "secret") == 0o600 for f in folders.values())


def test_an_error_leaves_nothing_and_can_be_repeated(store: Store, tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    cloud = CloudConfig("bench", broker=BrokerConfig(device_password_file=str(passwords)))
    out = tmp_path / "pi-1"
    owners = {"add_passwords": enrolment, "write_at": device_files, "add_devices": store}
    for name, owner in owners.items():
        with (
            failing(owner, name, StorageError("no space left")),
            pytest.raises(StorageError, match="no space left"),
        ):
            add_device(store, cloud, "pi-1", out)
        assert store.devices() == [] and not out.exists()
    missing = CloudConfig("b", broker=BrokerConfig("mqtts://h", ca_file=str(tmp_path / "none.crt")))
    with pytest.raises(StorageError, match="No such file"):
        add_device(store, missing, "pi-1", out)
    assert store.devices() == [] and not out.exists()
    assert passwords.read_text() == ""
    add_device(store, cloud, "pi-1", out)
    assert len(passwords.read_text().splitlines()) == 1


@pytest.mark.parametrize("applied", [False, True])
def test_a_secret_that_the_store_refuses_is_not_the_brokers(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """The old one stays in force everywhere, unless the store took the new one and its answer was lost."""
    passwords = tmp_path / "passwords"
    cloud = CloudConfig("bench", broker=BrokerConfig(device_password_file=str(passwords)))
    add_device(store, cloud, "pi-1", tmp_path / "old")
    before, reissue = passwords.read_text(), store.reissue_device

    def fail(device: str, secret: bytes) -> None:
        if applied:
            reissue(device, secret)
        raise StorageError("the server is gone")

    monkeypatch.setattr(store, "reissue_device", fail)
    if applied:
        reissue_device(store, cloud, "pi-1", tmp_path / "new")
        secret = bytes.fromhex((tmp_path / "new" / "secret").read_text())
        assert store.devices()[0].secret == secret and passwords.read_text() != before
        return
    with pytest.raises(StorageError, match="the server is gone"):
        reissue_device(store, cloud, "pi-1", tmp_path / "new")
    assert passwords.read_text() == before and not (tmp_path / "new").exists()


def test_only_the_users_own_line_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text("# kept\npi-10:$7$x\npi-1:$7$old\n\nother:pi-1:$7$y")
    add_passwords(path, {"pi-1": "new"})
    lines = path.read_text().splitlines()
    assert lines[:-1] == ["# kept", "pi-10:$7$x", "", "other:pi-1:$7$y"]
    assert lines[-1].startswith("pi-1:$7$101$") and path.read_text().endswith("\n")
    assert [found.name for found in tmp_path.iterdir()] == ["passwords"]


def test_the_password_file_stays_readable_to_the_broker(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text("other:$7$x\n")
    path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(path, 1234, 5678)
    before = path.stat()
    add_passwords(path, {"pi-1": "secret"})
    after = path.stat()
    for what in ("st_uid", "st_gid", "st_mode"):
        assert getattr(after, what) == getattr(before, what)


def test_passwords_added_at_once_all_arrive(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    with ThreadPoolExecutor(20) as pool:
        for number in range(20):
            pool.submit(add_passwords, path, {f"pi-{number}": "x"})
    users = {line.partition(":")[0] for line in path.read_text().splitlines()}
    assert users == {f"pi-{number}" for number in range(20)}


def test_a_password_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"add passwords to .*none/passwords: No such file"):
        add_passwords(tmp_path / "none" / "passwords", {"pi-1": "x"})
    with as_nobody() as folder:
        folder.chmod(0o500)
        with pytest.raises(StorageError, match="passwords: Permission denied"):
            add_passwords(folder / "passwords", {"pi-1": "x"})
        folder.chmod(0o700)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """A real broker with the configuration that ``write_first_files`` wrote."""
    fleet = RealFleet(tmp_path_factory.mktemp("real"))
    yield fleet
    fleet.close()


def lets_in(settings: BrokerSettings, topic: str) -> bool:
    """Whether the broker takes these credentials, and the subscription."""
    try:
        probe(settings, topic)
    except LinkError:
        return False
    return True


def test_mosquitto_believes_the_lines_that_we_write(fleet: RealFleet) -> None:
    cloud = load_cloud(fleet.folder / "cloud.toml")
    store = open_store(fleet.folder / "state")
    folder = add_device(store, cloud, "pi-1", fleet.folder / "pi-1")
    fleet.processes["broker"].send_signal(signal.SIGHUP)
    settings = load_config(folder / "edge.toml").broker_settings()
    own = down("test", "pi-1")
    wait_until(lambda: lets_in(settings, own), 30, "the broker has read its passwords again")
    assert lets_in(broker_settings(cloud), all_up("test"))  # the coordinator's line is still there
    wrong = BrokerSettings(settings.url, "pi-1", "pi-1", "0" * 64)
    assert not lets_in(wrong, own)
    assert not lets_in(BrokerSettings(settings.url, "pi-1"), own)
    stranger = BrokerSettings(settings.url, "pi-2", "pi-2", settings.password)
    assert not lets_in(stranger, down("test", "pi-2"))
    add_passwords(fleet.folder / "broker-passwords", {"pi-1": "another"})
    fleet.processes["broker"].send_signal(signal.SIGHUP)
    changed = BrokerSettings(settings.url, "pi-1", "pi-1", "another")
    wait_until(lambda: lets_in(changed, own), 30, "the new password holds")
    assert not lets_in(settings, own)
    revoke_device(store, cloud, "pi-1")
    fleet.processes["broker"].send_signal(signal.SIGHUP)
    wait_until(lambda: not lets_in(changed, own), 30, "a revoked device has no login")
    assert lets_in(broker_settings(cloud), all_up("test"))
