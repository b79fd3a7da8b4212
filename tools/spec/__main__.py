"""Write everything that is made from the structs of the wire.

    python -m tools.spec [--check]

With --check nothing is written: the exit status is 1 if a file is not what would be written.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.spec import java, onnx, tables

ROOT = Path(__file__).parents[2]
PROTOCOL = ROOT / "protocol"
JAVA = ROOT / "edge/android/core/src/main/java/org/sedge/edge"


def targets() -> Iterator[tuple[Path, Callable[[str], str]]]:
    """Every file, and what makes its new text of its old one."""
    for page in (PROTOCOL / "WIRE.md", *sorted((PROTOCOL / "spec").glob("*.md"))):
        yield page, tables.page
    yield JAVA / "wire" / "Messages.java", java.messages
    yield JAVA / "wire" / "OnnxTables.java", onnx.java
    yield JAVA / "jobs" / "Kept.java", java.kept
    yield JAVA / "rounds" / "State.java", java.state


def stale() -> dict[Path, str]:
    """The files that are not what they should be, with their new text."""
    made = ((path, path.read_text(), make) for path, make in targets())
    return {path: new for path, old, make in made if (new := make(old)) != old}


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(prog="python -m tools.spec", description="Write the spec.")
    parser.add_argument("--check", action="store_true", help="only report the files that are stale")
    check = parser.parse_args(arguments).check
    files = stale()
    for path, text in files.items():
        name = path.relative_to(ROOT).as_posix()
        print(f"{name}: stale, run make spec" if check else f"{name}: written")
        if not check:
            path.write_text(text)
    return 1 if check and files else 0


if __name__ == "__main__":
    sys.exit(main())
