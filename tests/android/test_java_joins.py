"""A phone joins by a token, pending and at once, and is refused in a line."""

import threading
import time
from pathlib import Path

import pytest
from tests.android.classes import java
from tools.bench.parts.real_fleet import RealFleet

pytestmark = pytest.mark.fleet


def test_a_phone_joins_by_a_token(fleet: RealFleet, class_path: str, tmp_path: Path) -> None:
    config = fleet.folder / "cloud.toml"
    text = config.read_text().replace("[broker]\n", f'[broker]\nreload = "{reload(fleet)}"\n')
    config.write_text(text)
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


def reload(fleet: RealFleet) -> str:
    """A command that signals the fleet's broker."""
    return f"kill -HUP {fleet.processes['broker'].pid}"
