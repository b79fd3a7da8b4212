"""What a process leaves behind when it is killed: nothing."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sedge_emulate.broker.exit_guard import ExitGuard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is watched")

_PARENT = """\
import subprocess, sys, time
from pathlib import Path
from sedge_emulate.broker.exit_guard import ExitGuard
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
guard = ExitGuard(child.pid, Path(sys.argv[1]))
if sys.argv[2] == "revoked":
    guard.revoke()
print(child.pid, flush=True)
time.sleep(60)
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"  # its new parent may not have looked yet


@pytest.mark.parametrize("is_revoked", [False, True], ids=["kept", "revoked"])
def test_after_a_kill(tmp_path: Path, is_revoked: bool) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-c", _PARENT, str(folder), "revoked" if is_revoked else "kept"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    if is_revoked:
        time.sleep(0.2)
        assert is_running(child) and folder.exists()
        subprocess.run(["kill", str(child)], check=True)
    wait_until(lambda: not is_running(child))
    wait_until(lambda: folder.exists() is is_revoked)


def test_the_process_itself_need_not_be_there_any_more(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    guard = ExitGuard(child.pid, tmp_path)
    guard.revoke()
    guard.revoke()
    assert tmp_path.exists()
