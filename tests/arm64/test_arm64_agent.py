"""The agent's own tests on emulated processors: runtimes, training, codec and messages.

That is what depends on processor, compiler or byte order. All of it runs on a Cortex-A53, the oldest; on
the newer ones the runtimes and the codec do, which pick their code by the processor's features. Left out
are the tests of the state machines, which are Python alone, and those that need torch, sedge-emulate or a
broker, which a device does not have.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.arm64 import guest, packages
from tools.arm64.kept import ROOT

pytestmark = [pytest.mark.arm64, pytest.mark.usefixtures("emulation")]

FEATURES = ("edge/backends", "protocol/codec")
FOLDERS = {
    "cortex-a53": (*FEATURES, "edge/training", "protocol/wire"),
    "cortex-a72": FEATURES,
    "cortex-a76": FEATURES,
}
# What a device does not have: torch, what needs it, and a C compiler.
NOT_THERE = re.compile(
    r"(?:from|import) (?:torch|sedge_export|sedge_emulate|tests\.edge\.home)\b|\"gcc\""
)
# Of the wheel as a file, with readelf.
DESELECTED = "tests/edge/backends/test_executorch.py::test_the_wheel_is_a_devices"


@pytest.mark.parametrize("cpu", guest.CPUS)
def test_the_agents_own_tests_pass(cpu: str, tmp_path: Path, say: Callable[[str], None]) -> None:
    files = [path for name in FOLDERS[cpu] for path in (ROOT / "tests" / name).glob("test_*.py")]
    usable = [str(path) for path in files if not NOT_THERE.search(path.read_text())]
    assert len(usable) > 0.7 * len(files)
    words = [guest.PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    words += ["--basetemp", str(tmp_path / "guest"), *usable]
    words += ["-m", "not host", "--deselect", DESELECTED]
    sites = [*map(packages.agent, packages.EXTRAS), packages.tests()]
    command, environment = guest.command(cpu, words, sites, [ROOT, tmp_path], str(ROOT))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    say(f"{cpu}: {done.stdout.splitlines()[-1]}")
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
