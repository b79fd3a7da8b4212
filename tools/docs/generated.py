"""What is made from the structs of the configuration files: the reference, and the comments of TOML files.

    python -m tools.docs.generated [--check]

With ``--check`` nothing is written, and a stale file is an error.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tools.docs.comments import commented

from sedge_cloud.config import CloudConfig, RunFile
from sedge_cloud.strategies import STRATEGIES
from sedge_edge.config import EdgeConfig
from sedge_emulate.config import EmulationConfig
from sedge_protocol.host.reference import reference

ROOT = Path(__file__).parents[2]
REFERENCE = "docs/reference.md"
HEAD = """# Reference

Every key of every file, and every option of every strategy, made from the code by `make spec`. On a machine
without this page: `sedge-cloud reference run.toml`, `sedge-cloud reference fedobp`, `sedge-edge reference`,
`sedge-emulate reference`.

"""
FILES: dict[str, type[msgspec.Struct]] = {
    "cloud.toml": CloudConfig,
    "edge.toml": EdgeConfig,
    "run.toml": RunFile,
    "fleet.toml": EmulationConfig,
}
# Files that show every key, in a comment where it is optional, and say what each table is for.
COMPLETE: dict[str, type[msgspec.Struct]] = {
    "cloud/cloud.toml": CloudConfig,
    "edge/edge.toml": EdgeConfig,
}
# Examples to begin with: each key that they set is explained once.
EXAMPLES: dict[str, type[msgspec.Struct]] = {
    "examples/demo.toml": EmulationConfig,
    "examples/faults.toml": EmulationConfig,
    "examples/own_model.toml": EmulationConfig,
    "examples/own_model_run.toml": RunFile,
    "examples/two_terminals/run.toml": RunFile,
}


def made() -> Iterator[tuple[str, str]]:
    """Path and text of every file that is made."""
    tables = [
        *FILES.items(),
        *((f'strategy = "{name}"', kind) for name, kind in STRATEGIES.items()),
    ]
    yield REFERENCE, HEAD + "\n".join(reference(title, struct) for title, struct in tables)
    for path, struct in (COMPLETE | EXAMPLES).items():
        yield path, commented((ROOT / path).read_text(), struct, with_tables=path in COMPLETE)


def stale() -> list[str]:
    """The files that differ from what would be made."""
    return [path for path, text in made() if (ROOT / path).read_text() != text]


def write() -> None:
    """Write every file."""
    for path, text in made():
        (ROOT / path).write_text(text)


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.generated")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    if not parser.parse_args().check:
        write()
        return 0
    old = stale()
    for path in old:
        print(f"{path} is stale; run: make spec", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
