"""``sedge-conformance`` against the agent in Java."""

import sys
from pathlib import Path

import pytest
from tests.android.java import run
from tests.android.java_fleet import JavaFleet
from tools.bench.parts.real_fleet import RealFleet, free_port

pytestmark = pytest.mark.fleet


def test_the_agent_in_java_keeps_every_rule(fleet: RealFleet, class_path: str, means: Path) -> None:
    port = free_port()
    java = JavaFleet(fleet, class_path)
    java.add("candidate", 1, f"mqtt://127.0.0.1:{port}")
    java.start("candidate")
    command = [sys.executable, "-m", "sedge_conformance", "-c", str(fleet.folder / "cloud.toml")]
    kept = run([*command, "candidate", "--bundle", str(means), "--gate", str(port)])
    print(kept)
    assert "a replayed order is dropped" in kept
