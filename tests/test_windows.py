"""The commands on Windows, simulated: without the modules and calls of Python that Windows lacks.

Every process of a command imports ``sitecustomize`` first, the emulator's workers included.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_output import FLEET

WITHOUT = """
import os, select, signal, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "pwd", "grp", "resource"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for module, names in (
    (os, "O_NOFOLLOW O_CLOEXEC O_DIRECTORY O_PATH pread pwrite posix_fallocate fchmod fchown chown "
         "geteuid getegid getuid getgid seteuid setegid setresuid setresgid sched_getaffinity"),
    (signal, "SIGHUP SIGPIPE"),
    (select, "poll"),
):
    for name in names.split():
        delattr(module, name)
for name in ("fcntl", "pwd", "grp", "resource"):
    sys.modules.pop(name, None)
"""
MODEL = "import torch\n\n\ndef net():\n    return torch.nn.Linear(4, 2)\n"
NO = "needs Linux or macOS; on Windows use WSL"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text(WITHOUT)
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "own.py").write_text(MODEL)
    return tmp_path


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit status, output and errors of ``python -m`` with these words."""
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(folder / "lib")}, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", ["sedge_cloud init x --fleet home", "sedge_edge run"])
def test_what_cannot_run_says_so_in_one_line(folder: Path, words: str) -> None:
    module = words.split()[0]
    assert run(folder, *words.split()) == (6, "", f"{module.replace('_', '-')}: {NO}\n")
    status, out, err = run(folder, module, "--help")
    assert (status, err) == (0, "") and "usage:" in out


@pytest.mark.fleet
def test_the_emulator_runs_in_virtual_time(folder: Path) -> None:
    status, out, err = run(folder, "sedge_emulate", "run", "fleet.toml", "--out", "out")
    assert (status, err) == (0, "") and "report: " in out
    assert (folder / "out" / "report.html").exists()
    assert run(folder, "sedge_emulate", "run", "fleet.toml", "--out", "b", "--link", "broker")[::2] == (
        6, f"sedge-emulate: link = 'broker' {NO}\n",
    )  # fmt: skip


@pytest.mark.fleet
def test_the_exporter_runs(folder: Path) -> None:
    options = "--sample-shape 4 --name own --batch-size 4 --num-classes 2 --out bundle"
    status, out, err = run(folder, "sedge_export", "own:net", *options.split())
    assert (status, err) == (0, "") and "verified with" in out
