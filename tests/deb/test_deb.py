"""The packages in a fresh Debian 12 and 13: installed, a round trained, upgraded by apt, purged."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.system.conftest import make_bundle, run_text

from sedge_emulate.data.datasets import digits
from sedge_protocol import VERSION

pytestmark = pytest.mark.deb
HERE = Path(__file__).parent
PACKAGES = "python3,mosquitto,openssl,systemd,adduser,ca-certificates"
RUN = run_text("fedavg", rounds=1, devices=1)


@pytest.mark.parametrize(("debian", "suite"), [("12", "bookworm"), ("13", "trixie")])
def test_from_the_packages_to_a_round(tmp_path: Path, debian: str, suite: str) -> None:
    assert os.geteuid() == 0, "a fresh Debian root needs root"
    root = tmp_path / "root"
    _run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(root)])
    packages = _repository(tmp_path, root / "journey", debian)
    served = packages.relative_to(root)
    line = f"deb [signed-by=/{served}/sedge.gpg] file:/{served} ./\n"
    (root / "etc/apt/sources.list").write_text(line)
    shutil.copytree(make_bundle(tmp_path / "bundle", 16), root / "journey/bundle")
    (root / "journey/run.toml").write_text(RUN)
    data = digits()
    np.savez(root / "journey/train.npz", x=data.inputs[:200], y=data.targets[:200])
    shutil.copy(HERE / "journey.sh", root / "journey/journey.sh")
    for package in packages.glob("*.deb"):
        _older(package, tmp_path / package.stem, root / "journey")
    _in(root, "dpkg -i /journey/*.deb")
    isolated = "ip link set lo up; mount -t proc proc proc; exec chroot . sh /journey/journey.sh"
    said = _run(["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-ec", isolated], root)
    assert "PROBLEM" not in said
    assert f"coordinator {VERSION} of fleet home hears pi-1" in said
    assert "1 of 2" in said or "2 of 2" in said
    for line in (
        "sedge-cloud 700 /var/lib/sedge-cloud",
        "mosquitto 600 /etc/mosquitto/sedge/passw",
    ):
        assert line in said
    _purged(root)


def _repository(tmp_path: Path, out: Path, debian: str) -> Path:
    """The repository for one Debian, signed by a new key."""
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    environment = {**os.environ, "GNUPGHOME": str(home)}
    new = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", "fleet@example"]
    words = ["--architecture", "amd64", "--debian", debian, "--out", str(out)]
    words += ["--sign-with", "fleet@example"]
    try:
        _run(new, environment=environment)
        _run([sys.executable, "-m", "tools.deb", *words], environment=environment)
    finally:
        _run(["gpgconf", "--kill", "all"], environment=environment)
    return out / f"debian{debian}"


def _older(package: Path, stage: Path, out: Path) -> None:
    """The same files as a package of an older version."""
    _run(["dpkg-deb", "--raw-extract", str(package), str(stage)])
    control = stage / "DEBIAN/control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 0~"))
    _run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(stage), str(out)])


def _purged(root: Path) -> None:
    """Purging keeps keys and state unless asked to delete them, and then leaves the user's data alone."""
    secrets = (
        "etc/sedge/secret",
        "etc/sedge/coordinator-password",
        "var/lib/sedge-cloud/sedge.sqlite",
    )
    _in(root, "dpkg --purge sedge-edge sedge-cloud")
    assert not (root / "opt/sedge").exists()
    asked = (root / "journey/asked").read_text().splitlines()
    assert "disable --now sedge-cloud-accounts.path" in asked
    for kept in secrets:
        assert (root / kept).exists(), f"{kept}: deleted without a question"
    _in(root, "apt-get --assume-yes install sedge-edge sedge-cloud")
    for part in ("cloud", "edge"):
        _in(root, f"echo sedge-{part} sedge-{part}/delete boolean true | debconf-set-selections")
    _in(root, "dpkg --purge sedge-edge sedge-cloud")
    left = _in(root, "find /etc /var/lib -path '*sedge*' -not -path '/var/lib/dpkg/*'")
    assert left.split() == ["/etc/sedge", "/etc/sedge/train.npz"]
    assert "sedge-cloud" not in (root / "etc/passwd").read_text()


def _in(root: Path, command: str) -> str:
    return _run(
        ["chroot", str(root), "sh", "-ec", f"export DEBIAN_FRONTEND=noninteractive; {command}"]
    )


def _run(
    words: list[str], folder: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout
