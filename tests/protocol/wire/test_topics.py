"""The topic tree, and the ids that may stand in it."""

import pytest

from sedge_protocol.errors import ConfigError, FrameError
from sedge_protocol.wire import topics

LONGEST = "d" * 48
UP = [
    ("home", "pi-1", "sedge/1/home/device/pi-1/up"),
    ("0", LONGEST, f"sedge/1/0/device/{LONGEST}/up"),
]


@pytest.mark.parametrize(("fleet", "device", "topic"), UP)
def test_up_topics_go_both_ways(fleet: str, device: str, topic: str) -> None:
    assert topics.up(fleet, device) == topic
    assert topics.device_of(topic) == device


def test_the_other_topics() -> None:
    assert topics.down("home", "pi-1") == "sedge/1/home/device/pi-1/down"
    assert topics.all_up("home") == "sedge/1/home/device/+/up"
    assert topics.blob("home", bytes(15) + b"\xab") == f"sedge/1/home/blob/{'00' * 15}ab"


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "sedge/1/home/device/pi-1/down",
        "sedge/1/home/device/pi-1/up/",
        "/sedge/1/home/device/pi-1/up",
        "x/sedge/1/home/device/pi-1/up",
        "sedge/1/home/device/pi-1/up/x",
        "sedge/1/home/device/pi-1/up\n",
        "sedge/2/home/device/pi-1/up",
        "sedge/1/device/pi-1/up",
        "sedge/1/home/device//up",
        "sedge/1//device/pi-1/up",
        "sedge/1/home/device/+/up",
        "sedge/1/home/device/#",
        "sedge/1/home/device/Pi-1/up",
        "sedge/1/home/device/pi.1/up",
        "sedge/1/home/device/-pi/up",
        f"sedge/1/home/device/{LONGEST}d/up",
        "sedge/1/home/device/pi-1/x/up",
        "sedge/1/home/device/pi-\u0661/up",
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
