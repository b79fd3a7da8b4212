"""Nothing leaves a device that Sedge did not send, and no library writes into its user's home."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.closed_network import ELSEWHERE

pytestmark = pytest.mark.fleet

ROOT = Path(__file__).parents[2]
CLOSED = ["unshare", "--map-root-user", "--net"]


def require_namespaces() -> None:
    """Skip where a user may not have a network of their own; CI must have one."""
    allowed = shutil.which("unshare") is not None
    allowed = allowed and subprocess.run([*CLOSED, "true"], check=False).returncode == 0
    if not allowed:
        assert os.environ.get("CI") != "true", "CI must let this test make a network namespace"
        pytest.skip("no network namespaces here")


# After ten seconds onnxruntime would look up its maker's telemetry host; its files come at once.
@pytest.mark.parametrize("seconds", [0, pytest.param(15, marks=pytest.mark.slow)])
def test_nothing_leaves_a_device_that_sedge_did_not_send(
    seconds: int, tmp_path: Path, small_bundle: Path
) -> None:
    require_namespaces()
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "fleet").mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "ORT_"))}
    script = ["-m", "tests.system.closed_network", str(tmp_path / "fleet"), str(small_bundle)]
    done = subprocess.run(
        [*CLOSED, sys.executable, *script, str(seconds)],
        cwd=ROOT,
        env={**kept, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    packets = [bytes.fromhex(packet) for packet in json.loads(done.stdout.splitlines()[-1])]
    assert packets
    assert {".".join(map(str, packet[16:20])) for packet in packets} == {ELSEWHERE[0]}, packets
    assert [str(path.relative_to(home)) for path in home.rglob("*")] == []
