"""The MQTT topics.

    sedge/1/<fleet>/device/<shard>/<device>/up      the device writes, the coordinator reads
    sedge/1/<fleet>/device/<shard>/<device>/down    the coordinator writes, the device reads
    sedge/1/<fleet>/shard/<shard>                   the coordinator asks a shard's devices for a hello
    sedge/1/<fleet>/blob/<transfer>                 chunks that the whole fleet may need
    sedge/1/<fleet>/cloud/<kind>                    messages among coordinators; devices have no access

A device's user name is its id, so four ACL lines on the broker keep devices apart. A device's shard depends
only on its id, so it stays the same when the number of coordinators changes.
"""

import hashlib
import re
from functools import lru_cache

from sedge_protocol.errors import ConfigError, FrameError

ROOT = "sedge/1"
# Replaces the device id in topics for the coordinator's messages to itself. No device may have this id.
ITSELF = "-"

# 48 characters fit in an X.509 common name (64) and in the client ids of every broker in use. \Z is used
# because $ would accept a line feed at the end.
ID_PATTERN = r"^[a-z0-9][a-z0-9-]{0,47}\Z"
_ID = re.compile(ID_PATTERN)
_ANY = "([a-z0-9][a-z0-9-]{0,47})"
_UP = re.compile(rf"{ROOT}/{_ANY}/device/([0-3][0-9a-f])/{_ANY}/up")
SHARDS = 64
SHARD_NAMES = tuple(f"{shard:02x}" for shard in range(SHARDS))


def check_id(value: str, key: str) -> str:
    """Return the id. Raises ``ConfigError`` unless it is 1 to 48 characters out of a-z, 0-9 and -."""
    if not _ID.match(value):
        raise ConfigError(key, value, "1 to 48 of a-z, 0-9 and '-', not starting with '-'")
    return value


@lru_cache(2**16)
def shard_of(device: str) -> str:
    """Return a device's shard: the first byte of the SHA-256 of its id, mod 64, in two hex digits."""
    return SHARD_NAMES[hashlib.sha256(device.encode()).digest()[0] % SHARDS]


def up(fleet: str, device: str) -> str:
    """Return the topic on which a device sends."""
    return f"{ROOT}/{fleet}/device/{shard_of(device)}/{device}/up"


def down(fleet: str, device: str) -> str:
    """Return the topic on which a device listens."""
    return f"{ROOT}/{fleet}/device/{shard_of(device)}/{device}/down"


def hint(fleet: str, shard: str) -> str:
    """Return the topic on which the coordinator asks all devices of a shard for a hello."""
    return f"{ROOT}/{fleet}/shard/{shard}"


def all_up(fleet: str, shard: str = "+") -> str:
    """Return the topic filter that matches the messages of every device of the fleet, or of a shard."""
    return f"{ROOT}/{fleet}/device/{shard}/+/up"


def first_version_up(fleet: str, device: str = "+") -> str:
    """Return the topic on which a device of protocol version 1 sends, to which we answer with a refusal."""
    return f"{ROOT}/{fleet}/device/{device}/up"


def first_version_down(fleet: str, device: str) -> str:
    """Return the topic on which a device of protocol version 1 listens."""
    return f"{ROOT}/{fleet}/device/{device}/down"


def blob(fleet: str, transfer: bytes) -> str:
    """Return the topic for the chunks of a shared blob; ``transfer`` is its 16-byte transfer id."""
    return f"{ROOT}/{fleet}/blob/{transfer.hex()}"


def cloud(fleet: str, kind: str = "+") -> str:
    """Return the topic of messages among a fleet's coordinators, of one kind or of all kinds."""
    return f"{ROOT}/{fleet}/cloud/{kind}"


def shard_in(topic: str) -> str:
    """Return the shard of the device that sends on a topic, of any protocol version.

    Returns "" if no device sends on it.
    """
    match topic.split("/"):
        case [_, _, _, "device", shard, _, "up"]:
            return shard
        case [_, _, _, "device", device, "up"]:
            return shard_of(device)
        case _:
            return ""


def device_of(topic: str) -> str:
    """Return the device id in an ``up`` topic. Raises ``FrameError`` for any other topic."""
    match = _UP.fullmatch(topic)
    if match is None or match.group(2) != shard_of(match.group(3)):
        raise FrameError(f"topic {topic!r} is not a device's up topic")
    return match.group(3)
