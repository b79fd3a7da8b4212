"""The broker's passwords are those of the rows, whoever changes both at once, on both kinds of store."""

import base64
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.cloud.stores import on_both, open_store

from sedge_cloud.admin import joining
from sedge_cloud.admin.enrolment import reissue_device
from sedge_cloud.admin.joining import make_token, settle
from sedge_cloud.admin.revocation import revoke_device
from sedge_cloud.broker.accounts import add_passwords
from sedge_cloud.config import BrokerConfig, CloudConfig
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import JoinRow
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.keys import DeviceKeys

pytestmark = on_both
OLD, OFFERED, JOINED = b"o" * 32, b"n" * 32, b"j" * 32


@pytest.fixture
def cloud(tmp_path: Path) -> CloudConfig:
    broker = BrokerConfig(device_password_file=str(tmp_path / "passwords"))
    return CloudConfig("bench", str(tmp_path / "state"), broker=broker)


def opens(cloud: CloudConfig, secret: bytes, name: str = "a") -> bool:
    """Whether the broker lets a device in with the password of this secret."""
    lines = Path(cloud.broker.device_password_file or "").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    _, _, count, salt, digest = line.split("$")
    password = DeviceKeys.of(secret).password.encode()
    found = hashlib.pbkdf2_hmac("sha512", password, base64.b64decode(salt), int(count))
    return base64.b64encode(found).decode() == digest


def present(store: Store) -> bytes:
    return store.devices_named(["a"])["a"].secret


def offer(store: Store) -> None:
    """Device a is enrolled, and has offered another secret."""
    store.add_device("a", OLD)
    store.ask_to_renew(["a"], 5.0)
    store.offer_secret("a", b"p", OFFERED)


def join(store: Store, cloud: CloudConfig, name: str = "a") -> JoinRow:
    """A device joins by a token for it, which accepts at once."""
    token = make_token(store, cloud, 1, 3600.0, {}, True, name)
    asked = JoinRow(b"k" * 65, token.token, name, JOINED, "pending", 0.0)
    row = store.ask_to_join(asked, time.time())
    assert row.state == "accepted"
    return row


def reissue(store: Store, cloud: CloudConfig) -> None:
    reissue_device(store, cloud, "a", Path(cloud.state_dir).parent / "new")


def join_and_settle(store: Store, cloud: CloudConfig) -> None:
    """A join, for which another coordinator has its turn."""
    join(store, cloud)
    settle(store, cloud)


@pytest.mark.parametrize("change", [reissue, join_and_settle])
def test_a_secret_that_changes_while_a_turn_writes(
    store: Store,
    cloud: CloudConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Store, CloudConfig], None],
) -> None:
    """A turn writes what it has read before: it must see that this is void by then."""
    offer(store)
    other, waiting = open_store(tmp_path / "state"), [change]

    def late(path: Path, passwords: dict[str, str]) -> list[str]:
        while waiting:
            waiting.pop()(other, cloud)
        return add_passwords(path, passwords)

    monkeypatch.setattr(joining, "add_passwords", late)
    settle(store, cloud)
    assert present(store) not in (OLD, OFFERED) and opens(cloud, present(store))


def test_a_device_that_is_revoked_while_a_turn_writes(
    store: Store, cloud: CloudConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(store)
    other = open_store(tmp_path / "state")

    def late(path: Path, passwords: dict[str, str]) -> list[str]:
        revoke_device(other, cloud, "a")
        return add_passwords(path, passwords)

    monkeypatch.setattr(joining, "add_passwords", late)
    settle(store, cloud)
    assert "a:" not in Path(cloud.broker.device_password_file or "").read_text()


def test_a_turn_between_the_file_and_the_row_of_a_reissue(
    store: Store, cloud: CloudConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing that the turn reads is void yet."""
    offer(store)
    other, change = open_store(tmp_path / "state"), store.reissue_device

    def late(device: str, secret: bytes) -> None:
        settle(other, cloud)
        change(device, secret)

    monkeypatch.setattr(store, "reissue_device", late)
    reissue(store, cloud)
    assert present(store) not in (OLD, OFFERED) and opens(cloud, present(store))


def test_a_join_that_a_reissue_overtakes(store: Store, cloud: CloudConfig) -> None:
    """The broker cannot reload for a while; what was issued meanwhile stays."""
    store.add_device("a", OLD)
    row = join(store, cloud)
    broken = msgspec.structs.replace(cloud.broker, reload="false")
    with pytest.raises(StorageError, match="reload"):
        settle(store, msgspec.structs.replace(cloud, broker=broken))
    assert opens(cloud, JOINED)
    reissue(store, cloud)
    settle(store, cloud)
    assert present(store) != JOINED and opens(cloud, present(store))
    known = store.join_of(row.point)
    assert known is not None and known.state == "admitted"  # nobody waits for an account


def test_only_the_brokers_host_gives_passwords(store: Store, cloud: CloudConfig) -> None:
    """Coordinators elsewhere, of the same fleet, leave to it what needs an account."""
    elsewhere = msgspec.structs.replace(cloud, broker=BrokerConfig())
    offer(store)
    store.add_device("b", OLD)
    row = join(store, cloud, "b")
    gone = make_token(store, cloud, 1, 3600.0, {}, False, "")
    store.revoke_token(gone.token)
    assert settle(store, elsewhere) == 0
    assert [due.device for due in store.renewals_due()] == ["a"]
    assert store.joins(["accepted"]) == [row]
    assert [spent.token for spent in store.spent_tokens(time.time())] == [gone.token]
    assert settle(store, cloud) == 1
    assert opens(cloud, OFFERED) and opens(cloud, JOINED, "b")
    assert not store.renewals_due() and not store.joins(["accepted"])
    assert gone.token not in Path(cloud.broker.device_password_file or "").read_text()


def test_a_broker_whose_accounts_are_made_by_hand(store: Store, cloud: CloudConfig) -> None:
    """Devices are told that they have joined, and no token waits for anybody to end its account."""
    elsewhere = msgspec.structs.replace(cloud, broker=BrokerConfig())
    store.add_device("a", OLD)
    row = join(store, elsewhere)
    assert settle(store, elsewhere) == 1
    assert store.joins(["admitted"]) == [msgspec.structs.replace(row, state="admitted")]
    store.revoke_token(row.token)
    assert store.spent_tokens(time.time()) == []
