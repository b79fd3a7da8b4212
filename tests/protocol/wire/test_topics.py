"""The topic tree, and the ids that may stand in it."""

from collections import Counter

import pytest

from sedge_protocol.errors import ConfigError, FrameError
from sedge_protocol.wire import topics

LONGEST = "d" * 48
# SHA-256 of "pi-1" begins with 0x9a, that of the longest id with 0xc1.
UP = [
    ("home", "pi-1", "sedge/1/home/device/1a/pi-1/up"),
    ("0", LONGEST, f"sedge/1/0/device/01/{LONGEST}/up"),
]


@pytest.mark.parametrize(("fleet", "device", "topic"), UP)
def test_up_topics_go_both_ways(fleet: str, device: str, topic: str) -> None:
    assert topics.up(fleet, device) == topic
    assert topics.device_of(topic) == device


def test_the_other_topics() -> None:
    assert topics.down("home", "pi-1") == "sedge/1/home/device/1a/pi-1/down"
    assert topics.hint("home", topics.shard_of("pi-1")) == "sedge/1/home/shard/1a"
    assert topics.all_up("home") == "sedge/1/home/device/+/+/up"
    assert topics.all_up("home", "3f") == "sedge/1/home/device/3f/+/up"
    assert topics.first_version_up("home") == "sedge/1/home/device/+/up"
    assert topics.blob("home", bytes(15) + b"\xab") == f"sedge/1/home/blob/{'00' * 15}ab"


def test_devices_spread_evenly_over_the_shards() -> None:
    shards = Counter(topics.shard_of(f"pi-{number}") for number in range(6400))
    assert len(shards) == topics.SHARDS and max(shards.values()) < 3 * min(shards.values())


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "sedge/1/home/device/1a/pi-1/down",
        "sedge/1/home/device/1a/pi-1/up/",
        "/sedge/1/home/device/1a/pi-1/up",
        "x/sedge/1/home/device/1a/pi-1/up",
        "sedge/1/home/device/1a/pi-1/up/x",
        "sedge/1/home/device/1a/pi-1/up\n",
        "sedge/2/home/device/1a/pi-1/up",
        "sedge/1/device/1a/pi-1/up",
        "sedge/1/home/device/1a//up",
        "sedge/1//device/1a/pi-1/up",
        "sedge/1/home/device/1a/+/up",
        "sedge/1/home/device/1a/#",
        "sedge/1/home/device/1a/Pi-1/up",
        "sedge/1/home/device/1a/pi.1/up",
        "sedge/1/home/device/1a/-pi/up",
        f"sedge/1/home/device/00/{LONGEST}d/up",
        "sedge/1/home/device/1a/pi-1/x/up",
        "sedge/1/home/device/1a/pi-\u0661/up",
        "sedge/1/home/device/pi-1/up",
        "sedge/1/home/device/1b/pi-1/up",
        "sedge/1/home/device/40/pi-1/up",
        f"sedge/1/home/blob/{'00' * 16}",
    ],
)
def test_other_topics_are_no_up_topics(topic: str) -> None:
    with pytest.raises(FrameError, match="up topic"):
        topics.device_of(topic)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "-a",
        "A",
        "a_b",
        "a/b",
        "a+",
        "#",
        "a b",
        "a\n",
        "a\x00",
        "ä",
        "\u0661",
        f"{LONGEST}d",
        " a",
    ],
)
def test_what_is_no_id_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="device: found"):
        topics.check_id(value, "device")
