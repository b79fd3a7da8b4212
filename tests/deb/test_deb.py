"""The packages in a fresh Debian: installed, units verified, a device joined, a round trained."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.system.conftest import make_bundle

from sedge_emulate.data.datasets import digits

pytestmark = pytest.mark.deb
HERE = Path(__file__).parent
PACKAGES = "python3,mosquitto,openssl,systemd,adduser"
RUN = """\
strategy = "fedavg"
num_rounds = 1
min_train_devices = 1
min_available_devices = 1
"""


def test_from_the_packages_to_a_round(tmp_path: Path) -> None:
    assert os.geteuid() == 0, "a fresh Debian root needs root"
    root = tmp_path / "root"
    words = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)]
    _run(words)
    out = ["--architecture", "amd64", "--out", str(root / "journey")]
    _run([sys.executable, "-m", "tools.deb", *out])
    shutil.copytree(make_bundle(tmp_path / "bundle", 16), root / "journey/bundle")
    (root / "journey/run.toml").write_text(RUN)
    data = digits()
    np.savez(root / "journey/train.npz", x=data.inputs[:200], y=data.targets[:200])
    shutil.copy(HERE / "journey.sh", root / "journey/journey.sh")
    _run(["chroot", str(root), "sh", "-c", "dpkg -i /journey/*.deb"])
    isolated = "ip link set lo up; mount -t proc proc proc; exec chroot . sh /journey/journey.sh"
    said = _run(["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-ec", isolated], root)
    assert "PROBLEM" not in said
    assert "coordinator 0.1.0 of fleet home hears pi-1" in said
    assert "1 of 2" in said or "2 of 2" in said
    for line in (
        "sedge-cloud 700 /var/lib/sedge-cloud",
        "mosquitto 600 /etc/mosquitto/sedge/passw",
    ):
        assert line in said
    _run(["chroot", str(root), "dpkg", "--purge", "sedge-edge", "sedge-cloud"])
    assert not (root / "opt/sedge").exists()


def _run(words: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout
