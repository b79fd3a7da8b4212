"""The Java core's own tests, on a JVM: the shared vectors, its link, and what tries programs."""

import re
from pathlib import Path

import pytest
from tests.android.java import CORE, JAVA, VECTORS, run
from tests.edge.python_only import REASONS
from tools.spec.__main__ import made

PAGE = Path(__file__).parents[2] / "docs" / "android-client.md"
TESTS = (
    "AgentTest",
    "VectorsTest",
    "host.LinkTest",
    "host.WebSpanTest",
    "rounds.RoundVectorsTest",
    "backends.TrialsTest",
)


def test_on_the_jvm(class_path: str, tmp_path: Path) -> None:
    properties = f"-Dsedge.vectors={VECTORS}", f"-Djava.io.tmpdir={tmp_path}"
    classes = [f"org.sedge.edge.{test}" for test in TESTS]
    runner = "org.junit.runner.JUnitCore"
    output = run([*JAVA, *properties, "-cp", class_path, runner, *classes])
    print(output)
    assert "OK (" in output


def test_the_page_says_how_large_the_core_is(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((CORE / "src" / "main").rglob("*.java"))
    sizes = {path.name: len(path.read_text().splitlines()) for path in files}
    lines = sum(sizes.values())
    with capsys.disabled():
        print(f"\nthe core in Java: {lines} lines in {len(files)} files")
    generated = sum(sizes[Path(path).name] for path, _ in made() if path.endswith(".java"))
    page = PAGE.read_text()
    assert f"**The core has {round(lines, -3):,} lines**. {round(generated, -2):,} of them" in page
    assert f"about {round(sizes['MqttConnection.java'], -1)} lines: the parts of MQTT" in page


def test_the_page_says_what_the_agents_tests_ask_of_python_alone() -> None:
    """Every reason is there, and has a test."""
    files = Path(__file__).parents[1].joinpath("edge").rglob("test_*.py")
    used = {
        name for path in files for name in re.findall(r'python_only\("(.+?)"', path.read_text())
    }
    assert used == REASONS.keys()
