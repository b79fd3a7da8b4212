"""The library's sources that run without Android, compiled once, and a JVM to run them in."""

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tests.android.java import JAVA, run

from android.build import HERE, compile_java

# The library without its schedule. Its tests have stand-ins of Android's classes and of the AARs'.
PLAIN = (
    *(
        f"library/src/main/java/org/sedge/android/{name}.java"
        for name in (
            "Backends",
            "Membership",
            "Progress",
            "RoundLog",
            "TrainingNotice",
            "TrainingService",
        )
    ),
    "library/src/main/java/org/sedge/executorch",
    "library/src/main/java/org/sedge/onnxruntime",
    "library/src/jvm/java",
)


@lru_cache(maxsize=1)
def with_backends(class_path: str) -> str:
    """The class path of the core, and of these beside it."""
    paths = [HERE / name for name in PLAIN]
    plain = [f for p in paths for f in (sorted(p.rglob("*.java")) if p.is_dir() else [p])]
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
