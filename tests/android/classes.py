"""The library on stand-ins for Android's classes, compiled once, and a JVM to run it in."""

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tests.android.java import JAVA, run

from android.build import HERE, compile_java

# The library, with stand-ins for Android's classes and of the AARs'.
PLAIN = ("library/src/main/java", "library/src/jvm/java")


@lru_cache(maxsize=1)
def with_backends(class_path: str) -> str:
    """The class path of the core, and of these beside it."""
    plain = [path for name in PLAIN for path in sorted((HERE / name).rglob("*.java"))]
    folder = Path(tempfile.mkdtemp(prefix="sedge-classes-"))
    core = [Path(part) for part in class_path.split(":")]
    return f"{compile_java(plain, core, folder)}:{class_path}"


def java(
    class_path: str,
    main: str,
    *words: str | Path,
    library: Path | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """The lines that a class's ``main`` prints; an exception there fails the test."""
    jni = [] if library is None else [f"-Dsedge.executorch={library}"]
    command = [*JAVA, *options, *jni, "-cp", with_backends(class_path), main, *map(str, words)]
    return run(command).splitlines()
