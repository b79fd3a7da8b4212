"""A device's state folder is remounted read-only while its agent idles, as after errors of an SD card."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.conftest import begin, run_text
from tools.bench.parts.real_fleet import RealFleet, wait_until

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]
RUN = run_text("fedavg", rounds=200, devices=2, more="min_updates = 1\ndeadline_s = 600\n")


@pytest.fixture
def folder(fleet: RealFleet) -> Iterator[Path]:
    """The state folder of pi-1, whose agent runs; from then on a mount of its own."""
    begin(fleet, "pi-1", "pi-2")
    wait_until(lambda: "welcomed" in fleet.log("pi-1"), 30, "the device is welcomed")
    folder = fleet.folder / "pi-1" / "state"
    mount("--bind", str(folder), str(folder))
    yield folder
    fleet.kill("pi-1")
    subprocess.run(["umount", str(folder)], check=True)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def test_the_coordinator_names_the_disk_and_no_round_waits(
    fleet: RealFleet, small_bundle: Path, folder: Path
) -> None:
    mount("-o", "remount,ro,bind", str(folder))
    fleet.start_run(small_bundle, RUN)
    words = "waits: write journal"
    wait_until(lambda: words in fleet.cloud("device", "list"), 30, "the coordinator names the disk")
    assert "Read-only file system" in fleet.cloud("run", "show", "run")
    wait_until(lambda: len(fleet.rounds()) >= 1, 60, "a round closes without it")
    assert {d.device for d in fleet.rounds()[0].devices} == {"pi-2"}
    mount("-o", "remount,rw,bind", str(folder))

    def takes_part() -> bool:
        return any(d.device == "pi-1" for r in fleet.rounds() for d in r.devices)

    wait_until(takes_part, 90, "the device takes part again")
