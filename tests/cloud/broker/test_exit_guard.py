"""What a process leaves behind when it is killed: nothing."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fleet import is_alive
from tools.bench.parts.real_fleet import wait_until

from sedge_cloud.broker.exit_guard import ExitGuard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is watched")

_PARENT = """\
import subprocess, sys, time
from pathlib import Path
from sedge_cloud.broker.exit_guard import ExitGuard
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
guard = ExitGuard(child.pid, Path(sys.argv[1]))
if sys.argv[2] == "revoked":
    guard.revoke()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("is_revoked", [False, True], ids=["kept", "revoked"])
def test_after_a_kill(tmp_path: Path, is_revoked: bool) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-c", _PARENT, str(folder), "revoked" if is_revoked else "kept"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    if is_revoked:
        time.sleep(0.2)
        assert is_alive(child) and folder.exists()
        subprocess.run(["kill", str(child)], check=True)
    wait_until(lambda: not is_alive(child), 20, "the child ends")
    wait_until(lambda: folder.exists() is is_revoked, 20, "the folder is as it should be")


def test_the_process_itself_need_not_be_there_any_more(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    guard = ExitGuard(child.pid, tmp_path)
    guard.revoke()
    guard.revoke()
    assert tmp_path.exists()
