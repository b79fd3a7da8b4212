"""The first files of a fleet: cloud.toml, mosquitto.conf, passwords and the broker's access list."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from sedge_cloud.admin.enrolment import write_private, write_public
from sedge_cloud.broker.access import access_list
from sedge_cloud.broker.accounts import add_passwords
from sedge_cloud.config import COORDINATOR
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.wire.topics import check_id

MOSQUITTO_CONF, PID_FILE = "mosquitto.conf", "mosquitto.pid"
_URL = re.compile(r"mqtt://[A-Za-z0-9.:\[\]-]+:(\d{1,5})")

CLOUD_TOML = """\
# The coordinator of one fleet{under}. Every key: share/sedge/cloud.toml.
fleet = "{fleet}"
state_dir = "{state}"

# What to keep of ended runs; by default, everything.
# [keep]
# runs = 10

[broker]
{broker}"""

# The limits that every Sedge broker sets for its clients; cloud/mosquitto.conf and the emulator's
# configuration have the same limits. Sedge sends at QoS 0 only, so the queue limits bound how many packets
# may wait for a slow client before the broker drops some.
LIMITS_OF_ALL = """\
# the largest frame is 256 KiB and 64 bytes
max_packet_size 400000
max_inflight_messages 32
max_queued_messages 200
max_queued_bytes 2000000
max_keepalive 120
set_tcp_nodelay true
# Sedge's sessions end with their connections; a session that another client left behind expires
persistent_client_expiration 1h
"""
MOSQUITTO_LIMITS = LIMITS_OF_ALL + "persistence false\n"

LISTENER = """\
per_listener_settings true
listener {port}
allow_anonymous false
password_file {passwords}
acl_file {acl}
"""
MOSQUITTO = (
    """\
# For a trial on a network you trust: passwords, no TLS. After `device add`, send SIGHUP to Mosquitto.
# cloud/mosquitto.conf has TLS on both sides.
user {user}
pid_file {pid}
"""
    + LISTENER
    + MOSQUITTO_LIMITS
)


def write_first_files(
    folder: Path, fleet: str, url: str, more: Mapping[str, str] | None = None, end: str = ""
) -> None:
    """Write a first cloud.toml, and a Mosquitto configuration that admits the coordinator.

    The configuration is meant for a trial on one network: it has passwords and an access list, but no TLS
    (see cloud/mosquitto.conf for TLS). ``more`` holds further keys for ``[broker]`` in cloud.toml; ``end``
    is appended after them. Raises ``ConfigError`` when the folder already holds a cloud.toml.
    """
    check_id(fleet, "fleet")
    match = _URL.fullmatch(url)
    if match is None or not 0 < int(match[1]) < 65536:
        raise ConfigError("url", url, "mqtt://host:port")
    if (folder / "cloud.toml").exists():
        raise ConfigError("folder", str(folder), "a folder without a cloud.toml")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        owner = folder.owner()
    except (OSError, KeyError) as exc:
        raise StorageError(f"{folder}: {exc}") from exc
    root = folder.resolve()
    passwords, acl = root / "broker-passwords", root / "broker-acl"
    broker = MOSQUITTO.format(
        port=match[1], passwords=passwords, acl=acl, user=owner, pid=root / PID_FILE
    )
    own = {
        "url": url,
        "password_file": "coordinator-password",
        "device_password_file": passwords.name,
        **(more or {}),
    }
    with translated("write a first configuration into", folder):
        write_account(fleet, folder / "coordinator-password", passwords, acl)
        write_public(folder / MOSQUITTO_CONF, broker.encode())
        write_public(folder / "cloud.toml", (cloud_toml(fleet, "state", own) + end).encode())


def cloud_toml(fleet: str, state: str, broker: Mapping[str, str], under: str = "") -> str:
    """Return the text of a new cloud.toml, with the keys of ``broker`` in its ``[broker]`` table."""
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in broker.items())
    return CLOUD_TOML.format(fleet=fleet, state=state, broker=keys, under=under)


def write_account(fleet: str, password_file: Path, passwords: Path, acl: Path) -> None:
    """Create the coordinator's broker account in the files ``passwords`` and ``acl``.

    The coordinator's own copy of the password goes into ``password_file``. Raises ``StorageError`` and
    ``OSError``.
    """
    password = os.urandom(24).hex()
    write_private(password_file, password + "\n")
    add_passwords(passwords, {f"{COORDINATOR}{fleet}": password})
    write_private(acl, access_list(fleet))
