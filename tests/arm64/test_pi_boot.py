"""A whole emulated machine of 512 MB: Debian, systemd, the agent from its package as its page says.

Coordinator and broker run on this machine. The agent is killed in the middle of its training, then the
machine; each goes on with the order that it had. A program without any rights uses the model.
"""

import ast
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.arm64.conftest import LABELS, require
from tests.arm64.emulated import MixedFleet
from tools.arm64 import machine, packages
from tools.arm64.kept import ROOT
from tools.arm64.machine import Machine
from tools.bench.parts.real_fleet import wait_until

from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.rows import OrderRow
from sedge_emulate.data.datasets import Dataset

pytestmark = pytest.mark.boot

# As docs/raspberry-pi.md has them, with a copied folder in place of `join`.
# dpkg does not know of the packages that were unpacked without it.
INSTALL = """\
dpkg --install --force-depends /media/sedge-edge.deb
mkdir -p /etc/sedge
cp /media/pi-1/* /etc/sedge
sedge-edge doctor
systemctl enable --now sedge-edge
"""
SERVE = """
[serve]
socket = "/run/sedge-edge/model.sock"
"""
MEMORY = "; ".join((
    "systemctl show -p MainPID,NRestarts,MemoryCurrent sedge-edge",
    "echo peak=$(cat /sys/fs/cgroup/system.slice/sedge-edge.service/memory.peak)",
    "pid=$(systemctl show --value -p MainPID sedge-edge)",
    r"echo resident=$(($(sed -n 's/VmHWM:\(.*\) kB/\1/p' /proc/$pid/status) * 1024))",
))  # fmt: skip
AS_NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups"
OWN_MODEL = ROOT / "docs/own-model.md"
# The training of a round takes long enough to be cut short.
RUN = """\
strategy = "fedobp"
num_rounds = 3
min_train_devices = 1
min_available_devices = 1
deadline_s = 3600
options = { quantile = 0.9995 }
[training]
local_epochs = 3
learning_rate = 0.01
momentum = 0.7
[codec]
values = "bf16"
fraction = 0.04
"""
EXAMPLES = 160
# Measured: 95.4 to 96.3 MiB, pages of shared libraries included; the aim is 96.
MAX_BYTES = 98 * 2**20
SECONDS = 900


class Fleet(MixedFleet):
    """A fleet with one device: a machine, whose own commands a test can run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.stick = folder / "stick.d"
        self._machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        """The machine, with what is on the stick when it is first asked for."""
        if self._machine is None:
            self._machine = Machine(self.folder, self.stick)
        return self._machine

    def close(self) -> None:
        if self._machine is not None:
            self._machine.cut_power()
        super().close()

    def said(self, text: str) -> None:
        """Wait until the serial line has said something."""
        wait_until(lambda: text in self.machine.log(), SECONDS, text)

    def ask(self, command: str) -> dict[str, str]:
        """The lines NAME=VALUE that a command prints in the machine."""
        before = len(self.machine.log())
        self.machine.tell(f"{command}; echo answer $((6 * 7))")
        wait_until(lambda: "answer 42" in self.machine.log()[before:], 120, command)
        return dict(re.findall(r"^(\w+)=(.*)$", self.machine.log()[before:], re.MULTILINE))

    def service(self) -> dict[str, int]:
        """What the machine knows of the agent: its process and starts, its memory in bytes.

        ``peak`` is the unit's: what the process has of its own, and the pages of files that it was the
        first to read; ``resident`` is the process's, with the pages of libraries that others use too.
        """
        return {name: int(value) for name, value in self.ask(MEMORY).items() if value.isdigit()}

    def asked_by_nobody(self) -> str:
        """What the device's model says of a row to a program without any rights."""
        told = self.ask(f"echo label=$({AS_NOBODY} python3 /media/ask.py)")
        (label,) = ast.literal_eval(told["label"])
        assert label in LABELS
        return str(label)

    def working_on(self, number: int) -> None:
        """Wait until the device trains for a round; all its steps take it much longer."""
        self.said(f"round {number}: train")
        time.sleep(5)

    def incarnation(self) -> int:
        """The agent's present life, as the coordinator knows it: each is later than the one before."""
        with closing(open_folder(self.folder / "state")) as store:
            (device,) = store.devices()
            return device.incarnation

    def order(self) -> OrderRow | None:
        with closing(open_folder(self.folder / "state")) as store:
            open_round = store.current_round("run")
            return None if open_round is None else store.order("run", open_round.round, "pi-1")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A coordinator, a broker, and a device whose machine is still to be switched on."""
    require(machine.TOOLS)
    with closing(Fleet(tmp_path)) as fleet:
        yield fleet


def enrol(fleet: Fleet, images: Dataset) -> None:
    """Add the device and put on its stick what a user carries to it."""
    home = fleet.stick / "pi-1"
    fleet.cloud("device", "add", "pi-1", "--service", "--out", str(home))
    fleet.processes["broker"].send_signal(signal.SIGHUP)
    config = home / "edge.toml"
    config.write_text(config.read_text().replace("127.0.0.1", machine.HOST) + SERVE)
    np.savez(home / "train.npz", x=images.inputs[:EXAMPLES], y=images.targets[:EXAMPLES])
    shutil.copy(packages.deb(), fleet.stick / "sedge-edge.deb")
    (fleet.stick / "install.sh").write_text(INSTALL)
    # The page's own program, after a line that says what to ask about.
    (program,) = re.findall(r"```python\n(import http.*?)```", OWN_MODEL.read_text(), re.DOTALL)
    row = f"row = {images.inputs[0].tolist()}\n"
    (fleet.stick / "ask.py").write_text(row + program)


def test_a_machine_of_512_mb_takes_part_and_survives(
    fleet: Fleet, cnn: Path, images: Dataset, say: Callable[[str], None]
) -> None:
    began = time.monotonic()

    def note(text: str) -> None:
        say(f"{time.monotonic() - began:5.0f} s  {text}")

    enrol(fleet, images)
    fleet.start_cloud()
    fleet.start_run(cnn, RUN)
    fleet.machine.boot()
    fleet.said("Finished install.service")
    assert "PROBLEM" not in fleet.machine.log()
    note("booted, the agent installed from its package, doctor content, its unit started")
    wait_until(lambda: len(fleet.rounds()) == 1, SECONDS, "round 1 closes")
    note("round 1 closed")
    first = fleet.service()
    memory = fleet.ask("sed -n 's/: */=/p' /proc/meminfo")
    used = int(memory["MemTotal"].split()[0]) - int(memory["MemAvailable"].split()[0])
    note(
        f"the unit's memory: {first['MemoryCurrent'] / 1e6:.0f} MB, peak {first['peak'] / 1e6:.0f}; "
        f"the process's peak {first['resident'] / 2**20:.1f} MiB"
    )
    note(f"the machine's: {used / 1e3:.0f} of {int(memory['MemTotal'].split()[0]) / 1e3:.0f} MB")
    assert first["NRestarts"] == 0 and first["peak"] < 224e6 and first["resident"] <= MAX_BYTES
    note(f"nobody, in ten lines of Python, asks the model: {fleet.asked_by_nobody()}")

    fleet.working_on(2)
    order, start = fleet.order(), fleet.incarnation()
    fleet.machine.tell("systemctl kill --signal=SIGKILL sedge-edge")
    note("the agent was killed in round 2")
    wait_until(lambda: fleet.incarnation() > start, SECONDS, "the agent is back")
    assert order is not None and order == fleet.order()
    wait_until(lambda: len(fleet.rounds()) == 2, SECONDS, "round 2 closes")
    second, start = fleet.service(), fleet.incarnation()
    note(f"systemd restarted it, and it ended the round; peak {second['resident'] / 2**20:.1f} MiB")
    assert second["NRestarts"] == 1 and second["MainPID"] != first["MainPID"]

    fleet.working_on(3)
    order = fleet.order()
    fleet.machine.cut_power()
    note("the machine lost power in round 3")
    assert order is not None and order == fleet.order()
    fleet.machine.boot()
    wait_until(fleet.finished, SECONDS, "the run ends")
    note("booted again, and the run ended")
    assert fleet.incarnation() > start
    assert [len(summary.devices) for summary in fleet.rounds()] == [1, 1, 1, 1]
    assert fleet.machine.log().count("Finished install.service") == 1
    note(f"and the model is in use: {fleet.asked_by_nobody()}")
