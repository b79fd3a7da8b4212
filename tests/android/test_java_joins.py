"""A phone joins by a token, pending and at once, and is refused in a line."""

import threading
import time
from pathlib import Path

import pytest
from tests.android.classes import java
from tests.android.java_fleet import JavaFleet
from tools.bench.parts.real_fleet import RealFleet, wait_until

pytestmark = pytest.mark.fleet


def test_a_phone_joins_by_a_token(fleet: RealFleet, class_path: str, tmp_path: Path) -> None:
    fleet.reload_by(fleet.folder / "cloud.toml")
    fleet.start_cloud()
    private = tmp_path / "private"
    private.mkdir()
    line = fleet.cloud("device", "token", "add").splitlines()[-1]

    def asks(line: str, name: str) -> list[str]:
        """What it prints, without its log."""
        options = [f"-Dsedge.folder={private}"]
        said = java(class_path, "org.sedge.android.JoinFleet", line, name, options=options)
        return [line for line in said if line.startswith(("pending", "phone-"))]

    def accept() -> None:
        until = time.monotonic() + 60
        while "phone-1: asks to join" not in fleet.cloud("device", "list"):
            assert time.monotonic() < until
            time.sleep(0.5)
        time.sleep(3)  # the phone's first call ends without an answer
        fleet.cloud("device", "accept", "phone-1")

    person = threading.Thread(target=accept)
    person.start()
    said = asks(line, "phone-1")
    person.join()
    # It has left again by the secret that it made: the coordinator heard it as this device.
    assert said == ["pending", "phone-1 true"]
    again = fleet.cloud("device", "token", "add", "--accept", "--count", "2").splitlines()[-1]
    said = asks(again, "phone-1")
    assert len(said) == 1 and "phone-1 was refused: there is a device phone-1 already" in said[0]
    said = asks(again, "phone-2")
    assert said == ["phone-2", "phone-2 true"]


def test_a_device_in_java_changes_its_secret(fleet: RealFleet, class_path: str) -> None:
    """Over Mosquitto: it agrees on a new secret, and begins with it at its next start."""
    fleet.reload_by(fleet.folder / "cloud.toml")
    devices = JavaFleet(fleet, class_path)
    devices.add("jvm-1", 0)
    fleet.start_cloud()
    devices.start("jvm-1")
    online = "device jvm-1 is online"
    wait_until(lambda: online in fleet.log("cloud"), 60, "the device connects")
    fleet.cloud("device", "rotate", "jvm-1")
    left = "no device has yet to change its secret"
    wait_until(lambda: left in fleet.cloud("device", "rotate"), 60, "the device has changed")
    fleet.kill("jvm-1")
    known = fleet.log("cloud").count(online)
    keys = fleet.folder / "jvm-1" / "state" / "keys"
    assert keys.exists()
    devices.start("jvm-1")
    wait_until(
        lambda: fleet.log("cloud").count(online) > known, 60, "it connects by its new secret"
    )
