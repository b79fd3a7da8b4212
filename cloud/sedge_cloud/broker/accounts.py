"""Mosquitto's password file, with one line per device, and a check that it agrees with the store."""

import base64
import contextlib
import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from sedge_cloud.broker.files import change_lines
from sedge_cloud.config import CloudConfig
from sedge_cloud.store.opening import open_store
from sedge_cloud.store.rows import DeviceRow
from sedge_protocol.errors import LinkError, StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.host.probe import probe
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.topics import down

# The format and iteration count of mosquitto_passwd: $7$ is PBKDF2-SHA512. The password is 256 random bits,
# so the count need not slow down guessing.
_ITERATIONS = 101


def add_passwords(path: Path, passwords: Mapping[str, str]) -> list[str]:
    """Write a line for each user into a Mosquitto password file. Returns the lines that were replaced."""
    with translated("add passwords to", path):
        return _replace_lines(path, passwords, [_line(*each) for each in passwords.items()])


def put_back(path: Path, users: Collection[str], lines: list[str]) -> None:
    """Restore the lines that ``add_passwords`` replaced; users who had no line before lose theirs."""
    with translated("put passwords back into", path):
        _replace_lines(path, users, lines)


def remove_passwords(path: Path, users: Collection[str]) -> None:
    """Remove users' lines from a Mosquitto password file, if there is one."""
    with translated("remove passwords from", path):
        if path.exists():
            _replace_lines(path, users, [])


def _line(user: str, password: str) -> str:
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    coded = f"{base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
    return f"{user}:$7${_ITERATIONS}${coded}"


def _replace_lines(path: Path, users: Collection[str], lines: list[str]) -> list[str]:
    """Replace users' lines. Returns the old ones. Raises ``OSError``."""
    replaced: list[str] = []

    def change(old: list[str]) -> list[str]:
        replaced.extend(line for line in old if line.partition(":")[0] in users)
        return [*(line for line in old if line.partition(":")[0] not in users), *lines]

    change_lines(path, change)
    return replaced


def passwords_agree(cloud: CloudConfig) -> str:
    """Compare the file with the store, then try to connect as the newest device and as a revoked one.

    Raises ``StorageError`` with the command that fixes a problem.
    """
    broker = cloud.broker
    by_hand = broker.cert_file is not None and broker.authority_key_file is None
    if broker.device_password_file is None or by_hand:
        return "not kept here (broker.device_password_file)"
    path = Path(broker.device_password_file)
    with as_caller(), translated("read the broker's passwords in", path):
        users = [line.partition(":")[0] for line in path.read_text().splitlines()]
    with contextlib.closing(open_store(cloud)) as store:
        rows = {row.device: row for row in store.devices()}
        # During a secret change the store has two passwords, and the broker may have either.
        between = {row.device for row in store.renewals()}
    for name, row in rows.items():
        if row.revoked and name in users:
            text = f"{name} is revoked but still in {path}"
            raise StorageError(f"{text}: sedge-cloud device revoke {name}")
        if not row.revoked and name not in users:
            raise StorageError(f"{name} is not in {path}: sedge-cloud device reissue {name}")
    last = next((rows[user] for user in reversed(users) if user in rows.keys() - between), None)
    gone = next((row for row in reversed(rows.values()) if row.revoked), None)
    mend = f"the broker has not reread {path}: {broker.reload or 'pkill -HUP mosquitto'}"
    if last is not None and not _let_in(cloud, last):
        raise StorageError(f"{broker.url} refuses {last.device}: {mend}")
    if gone is not None and _let_in(cloud, gone):
        raise StorageError(f"{broker.url} still lets in {gone.device}, which is revoked: {mend}")
    return f"{path} is the file that the broker uses"


def _let_in(cloud: CloudConfig, row: DeviceRow) -> bool:
    """Return True if the broker accepts the device's password.

    The test uses a different client id from the device's.
    """
    broker, name = cloud.broker, row.device
    password = DeviceKeys.of(row.secret).password
    # Any certificate from the fleet's authority is good enough, because the password identifies the client.
    files = broker.ca_file, broker.cert_file, broker.key_file
    settings = BrokerSettings(broker.url, name, name, password, *files)
    try:
        with as_caller():
            probe(settings, down(cloud.fleet, name))
    except LinkError as exc:
        if "Not authorized" in str(exc):
            return False
        raise
    return True
