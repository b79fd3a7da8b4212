"""The broker's access list: who may write and read which topics; and whether the broker's file has it."""

from pathlib import Path

from sedge_cloud.config import COORDINATOR, CloudConfig
from sedge_protocol.errors import StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.privileges import as_caller

# The last two lines are for devices of protocol version 1, which are told there that they are refused.
ACL = """\
user {user}
topic readwrite sedge/1/{fleet}/#
topic write homeassistant/device/sedge-{fleet}/+/config

pattern write sedge/1/{fleet}/device/+/%u/up
pattern read sedge/1/{fleet}/device/+/%u/down
pattern read sedge/1/{fleet}/shard/+
pattern read sedge/1/{fleet}/blob/#
pattern write sedge/1/{fleet}/device/%u/up
pattern read sedge/1/{fleet}/device/%u/down
"""
# What ``init`` calls it, with and without --service; it lies beside the devices' passwords.
NAMES = ("acl", "broker-acl")


def access_list(fleet: str) -> str:
    """The access list of a fleet."""
    return ACL.format(user=f"{COORDINATOR}{fleet}", fleet=fleet)


def access_is_whole(cloud: CloudConfig) -> str:
    """Look for every line in the file that ``init`` has written.

    Raises ``StorageError`` with the lines that an older version of Sedge did not write.
    """
    passwords = cloud.broker.device_password_file
    files = [] if passwords is None else [Path(passwords).with_name(name) for name in NAMES]
    with as_caller():
        path = next((path for path in files if path.exists()), None)
        if path is None:
            return "the broker's list is not kept here (docs/production-broker.md)"
        with translated("read the broker's access list in", path):
            present = path.read_text().splitlines()
    missing = [line for line in access_list(cloud.fleet).splitlines() if line not in present]
    if missing:
        lines = "; ".join(missing)
        raise StorageError(f"{path} lacks lines: add them, and restart Mosquitto: {lines}")
    return str(path)
