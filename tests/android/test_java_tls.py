"""An agent in Java that joins by a join text, over TLS."""

import base64
import json
from pathlib import Path

import pytest
from tests.android.java import JAVA
from tests.android.java_fleet import MAIN, MEANS, JavaFleet
from tools.bench.parts.real_fleet import RealFleet, free_port, wait_until

from sedge_cloud.broker.certificates import Authority

pytestmark = pytest.mark.fleet


def join_text(secret: str, **values: str) -> str:
    """What a person carries to the device."""
    packed = json.dumps({"fleet": "test", "secret": secret.strip(), **values}).encode()
    return "sedge:" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def test_an_agent_joins_over_tls_and_only_its_own_broker(
    fleet: RealFleet, class_path: str, tmp_path: Path
) -> None:
    own, other = Authority.made("test"), Authority.made("other")
    files = tmp_path / "broker.crt", tmp_path / "broker.key"
    for file, pem in zip(files, own.broker(["127.0.0.1"]), strict=True):
        file.write_text(pem)
    port = free_port()
    conf = fleet.folder / "mosquitto.conf"
    lines = conf.read_text().splitlines()
    accounts = [line for line in lines if line.startswith(("allow_", "password_file", "acl_file"))]
    certificate = f"certfile {files[0]}", f"keyfile {files[1]}"
    more = [f"listener {port} 127.0.0.1", *certificate, *accounts]
    conf.write_text("\n".join([*lines, *more]) + "\n")
    fleet.kill("broker")
    fleet.start_broker(port)
    fleet.start_cloud()
    java = JavaFleet(fleet, class_path)
    for number, (device, authority) in enumerate((("good", own), ("wrong", other))):
        home = java.add(device, seed=number)
        text = join_text(
            (home / "secret").read_text(), device=device, url=f"mqtts://127.0.0.1:{port}",
            ca=authority.texts()[0],
        )  # fmt: skip
        words = [text, str(home / "state"), str(home / "train.npz"), MEANS]
        fleet.start(device, [*JAVA, "-cp", class_path, MAIN, *words])
    wait_until(lambda: "joined test as good" in fleet.log("good"), 30, "the device is welcomed")
    wait_until(lambda: ": PKIX path" in fleet.log("wrong"), 30, "refusal")
    assert "joined" not in fleet.log("wrong")
    assert fleet.stop("good") == 143  # of SIGTERM, after the agent has said goodbye
    wait_until(lambda: "good" in fleet.log("cloud"), 30, "the coordinator knows the device")
