"""Writes every file that is generated from the code's structs and tables, for readers and for Java.

    python -m tools.spec [--check]

With --check nothing is written, and the exit status is 1 if a file is stale.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.docs import generated
from tools.spec import java, java_refusals, onnx, tables

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    f"protocol/{page}"
    for page in (
        "WIRE.md",
        "spec/bundle.md",
        "spec/enrolment.md",
        "spec/extensions.md",
        "spec/policy.md",
    )
)
JAVA = "edge/android/core/src/main/java/org/sedge/edge"


def made() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every generated file."""
    yield from generated.made()
    yield from zip(PAGES, tables.pages((ROOT / page).read_text() for page in PAGES), strict=True)
    yield f"{JAVA}/wire/Messages.java", java.messages()
    yield f"{JAVA}/wire/OnnxTables.java", onnx.java()
    yield f"{JAVA}/wire/Refusals.java", java_refusals.java()
    yield f"{JAVA}/jobs/Kept.java", java.kept()
    yield f"{JAVA}/rounds/State.java", java.state()


def stale() -> dict[str, str]:
    """Return the files that differ from their generated text, with that text."""
    return {path: text for path, text in made() if (ROOT / path).read_text() != text}


def write() -> None:
    """Rewrite the stale files."""
    for path, text in stale().items():
        (ROOT / path).write_text(text)
        print(f"{path}: written")


def main(arguments: list[str] | None = None) -> int:
    """Run the command: write the files, or check them. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.spec", description="Write generated files."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    if not parser.parse_args(arguments).check:
        write()
        return 0
    old = stale()
    for path in old:
        print(f"{path} is stale; run: make spec", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
