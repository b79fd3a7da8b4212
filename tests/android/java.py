"""The Java core with what a JVM needs besides, and its tests: compiled once, and what runs them."""

import fcntl
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ANDROID = Path(__file__).parents[2] / "edge" / "android"
CORE, JVM, NULLNESS = (ANDROID / name for name in ("core", "jvm", "nullness"))
VECTORS = Path(__file__).parents[1] / "vectors"
JARS = Path("/usr/share/java")
PACKAGES = "openjdk-17-jdk-headless junit4"
LIBRARIES = ("junit4.jar", "hamcrest-core.jar")
# A small heap, as on a phone, and no more threads than the fleet's other processes have.
JAVA = ("java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def compiled(folder: Path) -> str:
    """Compile core, JVM part and tests as Java 8. Gives the class path. Fails the test for a warning."""
    lacking = [name for name in LIBRARIES if not (JARS / name).exists()]
    assert not lacking, f"{lacking}: apt-get install {PACKAGES}"
    libraries = ":".join(str(JARS / name) for name in LIBRARIES)
    product, host, tests = (
        [*map(str, sorted(path.rglob("*.java")))]
        for path in (CORE / "src" / "main", JVM / "src" / "main", CORE / "src" / "test")
    )
    # javac lives for seconds: that its own code is compiled well pays for nobody.
    options = (
        "javac", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "--release", "8",
        "-Xlint:all,-options", "-Werror", "-d", str(folder),
    )  # fmt: skip
    nullness = map(str, (NULLNESS / "src").rglob("*.java"))
    run([*options, *nullness, *product])  # against nothing but the standard library
    run([*options, "-cp", str(folder), *host])
    run([*options, "-cp", f"{folder}:{libraries}", *tests])
    return f"{folder}:{libraries}"


def once(
    tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]
) -> str:
    """What ``build`` makes in a folder, as text, for all processes of a test run: the first builds."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = folder / f"{name}.made"
        if not known.exists():
            known.write_text(str(build(folder / name)))
        return known.read_text()


def run(words: Sequence[str], seconds: float = 300) -> str:
    """Run a command to its end; its output. Fails the test when it fails."""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False
    )
    output = done.stdout.decode(errors="replace")
    assert done.returncode == 0, output
    return output
