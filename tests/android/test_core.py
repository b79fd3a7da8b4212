"""The Java core's own tests, on a JVM: the shared vectors, and a device on a virtual clock."""

from pathlib import Path

import pytest
from tests.android.java import junit

TESTS = (
    "AgentTest",
    "VectorsTest",
    "host.LinkTest",
    "rounds.HostileCoordinatorTest",
    "rounds.SimulationTest",
)


@pytest.mark.parametrize("test", TESTS)
def test_on_the_jvm(class_path: str, tmp_path: Path, test: str) -> None:
    output = junit(class_path, f"org.sedge.edge.{test}", tmp_path)
    print(output)
    assert "OK (" in output
