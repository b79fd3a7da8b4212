"""The broker's access list, which says who may write and read which topics, and a check of that list."""

from collections.abc import Collection
from pathlib import Path

from sedge_cloud.broker.files import change_lines
from sedge_cloud.config import COORDINATOR, CloudConfig
from sedge_protocol.errors import StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.privileges import as_caller

# The last two lines are for devices that use protocol version 1: their topic tells them that they are
# refused.
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
# A token's account may use its own topics, as a device may, but none of the topics that devices share.
TOKEN = """\
user {token}
topic deny sedge/1/{fleet}/blob/#
topic deny sedge/1/{fleet}/shard/+
"""
# The names that ``init`` gives the file, with and without --service. The file is next to the password file.
NAMES = ("acl", "broker-acl")


def access_list(fleet: str) -> str:
    """Return the access list of a fleet."""
    return ACL.format(user=f"{COORDINATOR}{fleet}", fleet=fleet)


def shut_in(cloud: CloudConfig, token: str) -> bool:
    """Deny a token's account access to the topics that devices share.

    Returns False if the access list is kept on another machine. Raises ``StorageError``.
    """
    path, lines = access_file(cloud), TOKEN.format(token=token, fleet=cloud.fleet).splitlines()
    if path is None:
        return False
    with translated("restrict a token in", path):
        change_lines(path, lambda old: [*old, *lines])
    return True


def forget_tokens(cloud: CloudConfig, tokens: Collection[str]) -> None:
    """Remove the lines that ``shut_in`` wrote for these tokens. Raises ``StorageError``."""
    path = access_file(cloud)
    if path is None:
        return
    gone = [TOKEN.format(token=token, fleet=cloud.fleet).splitlines() for token in tokens]

    def change(lines: list[str]) -> list[str]:
        for block in gone:
            at = lines.index(block[0]) if block[0] in lines else -1
            if at >= 0 and lines[at : at + len(block)] == block:
                del lines[at : at + len(block)]
        return lines

    with translated("forget tokens in", path):
        change_lines(path, change)


def access_file(cloud: CloudConfig) -> Path | None:
    """Return the path of the broker's access list, or None if it is not on this machine."""
    passwords = cloud.broker.device_password_file
    files = [] if passwords is None else [Path(passwords).with_name(name) for name in NAMES]
    return next((path for path in files if path.exists()), None)


def access_is_whole(cloud: CloudConfig) -> str:
    """Check that the file has every line that ``init`` writes. Returns a line for the operator.

    Raises ``StorageError`` naming missing lines; a file written by an older version of Sedge lacks some.
    """
    with as_caller():
        path = access_file(cloud)
        if path is None:
            return "the broker's list is not kept here (docs/production-broker.md)"
        with translated("read the broker's access list in", path):
            present = path.read_text().splitlines()
    missing = [line for line in access_list(cloud.fleet).splitlines() if line not in present]
    if missing:
        lines = "; ".join(missing)
        raise StorageError(f"{path} lacks lines; add them and restart Mosquitto: {lines}")
    return str(path)
