"""A revocation says what it has done and what it has not; with a real broker in test_doctors.py."""

from pathlib import Path

import msgspec
import pytest

from sedge_cloud.admin import revocation
from sedge_cloud.admin.revocation import SIGHUP, revoke_device
from sedge_cloud.broker.accounts import add_passwords
from sedge_cloud.config import BrokerConfig, CloudConfig
from sedge_cloud.store.database import Store
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.loop import lock_folder

OPEN = "An open connection lasts until the broker or the device closes it."


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        ({}, ["Remove it from the broker's passwords, if it has one there.", OPEN]),
        ({"device_password_file": "none"}, [SIGHUP, OPEN]),
        ({"device_password_file": "none", "reload": "true"}, []),
        (
            {"device_password_file": "none", "reload": "true", "cert_file": "c"},
            ["If it has a certificate, add that to the broker's revocation list."],
        ),
    ],
)
def test_what_is_left_to_do(
    store: Store, tmp_path: Path, keys: dict[str, str], left: list[str]
) -> None:
    store.add_device("pi-1", bytes(32))
    broker = msgspec.convert(keys, BrokerConfig)
    cloud = CloudConfig("bench", state_dir=str(tmp_path / "state"), broker=broker)
    became = revoke_device(store, cloud, "pi-1")
    assert list(became.left) == left and not became.failure
    assert ("The broker has ended its connection" in became.done[-1]) is ("reload" in keys)
    assert store.devices()[0].revoked
    with pytest.raises(ConfigError, match="found 'pi-2', expected an enrolled device"):
        revoke_device(store, cloud, "pi-2")


def test_a_deaf_broker(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is revoked all the same, and the same again, once it can be told, is complete."""
    monkeypatch.setattr(revocation, "NOTIFY_S", 0.0)
    passwords = tmp_path / "passwords"
    store.add_device("pi-1", bytes(32))
    broker = BrokerConfig(device_password_file=str(passwords), reload="false")
    cloud = CloudConfig("bench", state_dir=str(tmp_path / "state"), broker=broker)
    passwords.mkdir()
    with lock_folder(tmp_path / "state"):  # as if the service ran
        became = revoke_device(store, cloud, "pi-1")
    assert "remove passwords from" in became.failure and "Is a directory" in became.failure
    assert store.devices()[0].revoked
    passwords.rmdir()
    add_passwords(passwords, {"pi-1": "x"})
    became = revoke_device(store, cloud, "pi-1")
    assert "broker.reload: 'false' exited with 1" in became.failure
    assert passwords.read_text().strip() == ""
    cloud = msgspec.structs.replace(cloud, broker=msgspec.structs.replace(broker, reload="true"))
    again = revoke_device(store, cloud, "pi-1")
    assert (again.failure, again.left) == ("", ())
    assert became.command == "sudo sedge-cloud device revoke pi-1"
