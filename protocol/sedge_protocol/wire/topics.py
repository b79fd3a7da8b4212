"""The MQTT topic tree, in one place.

    sedge/1/<fleet>/device/<device>/up      the device writes, the coordinator reads
    sedge/1/<fleet>/device/<device>/down    the coordinator writes, the device reads
    sedge/1/<fleet>/blob/<transfer>         chunks that the whole fleet may need

User name = device id, so three broker ACL lines on the user name keep devices apart.
"""

import re

from sedge_protocol.errors import ConfigError, FrameError

ROOT = "sedge/1"
# In place of a device's id: the coordinator's messages to itself. No device has this id.
ITSELF = "-"

# 48 characters fit an X.509 common name (64) and every broker's client id limit in use today.
# \Z and not $, which would let a line feed pass at the end.
ID_PATTERN = r"^[a-z0-9][a-z0-9-]{0,47}\Z"
_ID = re.compile(ID_PATTERN)
_ANY = "([a-z0-9][a-z0-9-]{0,47})"
_UP = re.compile(rf"{ROOT}/{_ANY}/device/{_ANY}/up")


def check_id(value: str, key: str) -> str:
    """The id itself. Raises ``ConfigError`` unless it is 1 to 48 of a-z, 0-9 and -."""
    if not _ID.match(value):
        raise ConfigError(key, value, "1 to 48 of a-z, 0-9 and '-', not starting with '-'")
    return value


def up(fleet: str, device: str) -> str:
    """Where a device sends."""
    return f"{ROOT}/{fleet}/device/{device}/up"


def down(fleet: str, device: str) -> str:
    """Where a device listens."""
    return f"{ROOT}/{fleet}/device/{device}/down"


def all_up(fleet: str) -> str:
    """The coordinator's subscription: every device of the fleet."""
    return f"{ROOT}/{fleet}/device/+/up"


def blob(fleet: str, transfer: bytes) -> str:
    """Where the chunks of a shared blob are published; ``transfer`` is its 16-byte transfer id."""
    return f"{ROOT}/{fleet}/blob/{transfer.hex()}"


def device_of(topic: str) -> str:
    """The device id in an ``up`` topic. Raises ``FrameError`` for any other topic."""
    match = _UP.fullmatch(topic)
    if match is None:
        raise FrameError(f"topic {topic!r} is not a device's up topic")
    return match.group(2)
