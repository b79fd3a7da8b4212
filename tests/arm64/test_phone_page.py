"""docs/android.md, "The Python agent on a phone": its commands, under proot on an emulated processor."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.arm64.emulated import MixedFleet
from tools.arm64 import guest, packages
from tools.arm64.debian import debian
from tools.arm64.kept import ROOT

pytestmark = [pytest.mark.arm64, pytest.mark.usefixtures("emulation")]

# What the page has apt-get install, which the root folder below has from the start.
PACKAGES = ["python3-venv", "ca-certificates"]


def commands() -> list[str]:
    """The page's commands inside the Debian, after apt-get's."""
    page = (ROOT / "docs" / "android.md").read_text().partition("## The Python agent on a phone")[2]
    block: list[str] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[0].splitlines()
    (apt,) = (line for line in block if line.startswith("apt-get"))
    assert apt.endswith(f"install -y {PACKAGES[0]}")
    return block[block.index(apt) + 1 :]


def test_the_pages_commands_install_an_agent_that_joins(fleet: MixedFleet, tmp_path: Path) -> None:
    fleet.add_device("phone-1", 1)
    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(fleet.folder / "phone-1", home / "phone-1")
    wheels = packages.downloaded("onnxruntime")
    for wheel in wheels.glob("*.whl"):
        shutil.copy(wheel, home)
    cpuinfo = guest.cpuinfo("cortex-a53")
    binds = ["/proc", "/dev", "/sys", f"{cpuinfo}:/proc/cpuinfo", str(home)]
    proot = ["proot", "-0", "-q", "qemu-aarch64-static", "-r", str(debian("phone", PACKAGES))]
    words = [*proot, "-w", str(home), *(word for bind in binds for word in ("-b", bind))]
    # No network but the wheels, which pip would get from PyPI.
    environment = {
        "PATH": os.environ["PATH"], "QEMU_CPU": "cortex-a53", "OMP_NUM_THREADS": "1",
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(home), "HOME": str(home),
    }  # fmt: skip
    edge = "sedge/bin/sedge-edge -c phone-1/edge.toml"
    script = "\n".join(["set -e", *commands(), f"{edge} doctor", f"{edge} once"])
    done = subprocess.run(
        [*words, "/bin/sh", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-5_000:]
    assert "welcomed by coordinator" in done.stderr
