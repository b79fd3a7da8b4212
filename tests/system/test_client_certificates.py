"""A fleet whose broker asks for certificates: join, train, renew, revoke, and all that is refused."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from ssl import DER_cert_to_PEM_cert

import numpy as np
import pytest
from tests.system.conftest import run_text
from tools.bench.joining import join, lets_in, refusal, settings_of, with_other_certificates
from tools.bench.parts.real_fleet import RealFleet, command, wait_until

from sedge_cloud.admin.certifying import DAY_S, RENEW_SHARE
from sedge_cloud.broker.certificates import Authority
from sedge_cloud.store.opening import open_folder
from sedge_edge.config import load_config
from sedge_emulate.data.datasets import digits

pytestmark = pytest.mark.fleet

RUN = run_text("fedavg", rounds=1, devices=1)


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[RealFleet]:
    with closing(RealFleet(tmp_path, certificates=True)) as fleet:
        fleet.start_cloud()
        yield fleet


def token(fleet: RealFleet, *words: str) -> str:
    return fleet.cloud("device", "token", "add", "--accept", *words).splitlines()[-1]


def test_join_train_revoke(certified: RealFleet, small_bundle: Path) -> None:
    fleet, line = certified, token(certified)
    assert join(fleet, line, "pi-0") == ""
    data, home = digits(), fleet.folder / "pi-0"
    np.savez(home / "train.npz", x=data.inputs[:200], y=data.targets[:200])
    assert not (home / "device.key").exists()
    for what, refused in with_other_certificates(fleet, "pi-0"):
        assert refused, what
    fleet.start_agent("pi-0")
    fleet.start_run(small_bundle, RUN)
    wait_until(fleet.finished, 60, "a run of one round")
    assert "pi-0 (364 days left)" in fleet.cloud("doctor")
    config = home / "edge.toml"
    assert "364 days left" in command("sedge_edge", "-c", str(config), "doctor")
    # It is connected, and gone at once; then neither its password nor its certificate opens the door.
    fleet.cloud("device", "revoke", "pi-0")
    wait_until(lambda: "not connected" in command("sedge_edge", "-c", str(config), "status"), 10,
               "the connection of a revoked device ends")  # fmt: skip
    assert "our certificate was revoked" in refusal(settings_of(fleet, "pi-0"))
    # The way back needs no SD card.
    back = token(fleet, "--device", "pi-0")
    fleet.stop("pi-0")
    command("sedge_edge", "join", back, "--replace", "--out", str(home))
    assert lets_in(settings_of(fleet, "pi-0"))


def test_a_certificate_is_renewed_over_the_connection(certified: RealFleet) -> None:
    """One whose last third has begun, and one that ended while its device was off."""
    fleet = certified
    for name in ("pi-0", "pi-1"):
        fleet.add_device(name, 0)
    first = settings_of(fleet, "pi-0").client_pem
    shorten(fleet, "pi-0", time.time() + RENEW_SHARE * 365 * DAY_S - 60)
    shorten(fleet, "pi-1", time.time() - 60)
    # The broker's account of a device that was off is as good as ever; its certificate is not.
    assert "our certificate has expired" in refusal(settings_of(fleet, "pi-1"))
    fleet.start_agent("pi-0")
    wait_until(lambda: "has renewed the certificate" in fleet.log("pi-0"), 30, "a renewal")
    assert settings_of(fleet, "pi-0").client_pem != first
    fleet.stop("pi-0")
    assert lets_in(settings_of(fleet, "pi-0"))
    text = command("sedge_edge", "-c", str(fleet.folder / "pi-1/edge.toml"), "doctor", status=1)
    assert "token add --device pi-1" in text
    back = token(fleet, "--device", "pi-1")
    command("sedge_edge", "join", back, "--replace", "--out", str(fleet.folder / "pi-1"))
    assert lets_in(settings_of(fleet, "pi-1"))


def shorten(fleet: RealFleet, name: str, until: float) -> None:
    """As if the certificate in a device's folder had been issued long ago."""
    key, own = ((fleet.folder / file).read_text() for file in ("ca.key", "ca.pem"))
    secret = load_config(fleet.folder / name / "edge.toml").secret()
    row = Authority.read(key, own).certify(name, secret, until)
    with closing(open_folder(fleet.folder / "state")) as store:
        store.add_certificates([row], renews=True)
    (fleet.folder / name / "device.pem").write_text(DER_cert_to_PEM_cert(row.der))
    fleet.processes["broker"].send_signal(signal.SIGHUP)
