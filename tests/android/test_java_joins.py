"""A phone joins by a token, pending and at once, and is refused in a line."""

import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.android.classes import java
from tests.android.java_fleet import JavaFleet
from tests.system.test_client_certificates import RUN, shorten, token
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_cloud.admin.certifying import DAY_S, RENEW_SHARE
from sedge_protocol.host.enrolment import Token, parse_join_text

pytestmark = pytest.mark.fleet


def asked(class_path: str, private: Path, line: str, name: str) -> list[str]:
    """What a phone with these files prints when it joins and leaves again, without its log."""
    options = [f"-Dsedge.folder={private}"]
    said = java(class_path, "org.sedge.android.JoinFleet", line, name, options=options)
    return [line for line in said if line.startswith(("pending", "phone-", "mqtts:"))]


def test_a_phone_joins_by_a_token(fleet: RealFleet, class_path: str, tmp_path: Path) -> None:
    fleet.reload_by(fleet.folder / "cloud.toml")
    fleet.start_cloud()
    private = tmp_path / "private"
    private.mkdir()
    line = fleet.cloud("device", "token", "add").splitlines()[-1]

    asks = partial(asked, class_path, private)

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
    left = "no device still has to change its secret"
    wait_until(lambda: left in fleet.cloud("device", "rotate"), 60, "the device has changed")
    fleet.kill("jvm-1")
    known = fleet.log("cloud").count(online)
    keys = fleet.folder / "jvm-1" / "state" / "keys"
    assert keys.exists()
    devices.start("jvm-1")
    wait_until(
        lambda: fleet.log("cloud").count(online) > known, 60, "it connects by its new secret"
    )


def test_a_device_in_java_shows_a_certificate(class_path: str, means: Path, tmp_path: Path) -> None:
    """It joins, trains, gets its next certificate, and is revoked while it is connected."""
    (tmp_path / "private").mkdir()
    with closing(RealFleet(tmp_path, certificates=True)) as fleet:
        fleet.start_cloud()
        # It has left over a connection with the certificate that it got by the token's.
        line = token(fleet)
        asks = partial(asked, class_path, tmp_path / "private", line)
        assert asks("phone-1")[-1] == "phone-1 true"
        used = parse_join_text(line)
        assert isinstance(used, Token)
        fleet.cloud("device", "token", "revoke", used.token)
        (said,) = asks("phone-2")
        assert "our certificate was revoked: the token has expired, was revoked" in said
        devices = JavaFleet(fleet, class_path)
        for name in ("jvm-1", "jvm-2"):
            devices.add(name, 0)
        now = time.time()
        shorten(fleet, "jvm-1", now + RENEW_SHARE * 365 * DAY_S - 60)
        shorten(fleet, "jvm-2", now - 60)
        devices.start("jvm-1")
        devices.start("jvm-2")
        renewed = "has renewed the certificate for the broker: 364 days left"
        wait_until(lambda: renewed in fleet.log("jvm-1"), 60, "a renewal")
        wait_until(lambda: "our certificate has expired; it ended 0 days ago" in fleet.log("jvm-2"),
                   60, "the broker refuses a certificate that has ended")  # fmt: skip
        fleet.stop("jvm-1")
        devices.start("jvm-1")
        kept = "the certificate for the broker: 364 days left"
        wait_until(lambda: kept in fleet.log("jvm-1").rpartition(renewed)[2], 30, "it is kept")
        fleet.start_run(means, RUN)
        wait_until(fleet.finished, 60, "a run of one round")
        fleet.cloud("device", "revoke", "jvm-1")
        refused = "the broker refuses us: our certificate was revoked"
        wait_until(lambda: refused in fleet.log("jvm-1"), 60, "the connection ends")
