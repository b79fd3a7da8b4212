"""Generates the reference, and the comments in TOML files, from the structs of the configuration files.

``make spec`` (tools/spec) writes both.
"""

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

Every key of every file, and every option of every strategy, generated from the code by `make spec`. On a
machine without this page, run `sedge-cloud reference run.toml`, `sedge-cloud reference fedobp`,
`sedge-edge reference` or `sedge-emulate reference`.

"""
FILES: dict[str, type[msgspec.Struct]] = {
    "cloud.toml": CloudConfig,
    "edge.toml": EdgeConfig,
    "run.toml": RunFile,
    "fleet.toml": EmulationConfig,
}
# Complete files: they contain every key, commented out if it is optional, and describe each table.
COMPLETE: dict[str, type[msgspec.Struct]] = {
    "cloud/cloud.toml": CloudConfig,
    "edge/edge.toml": EdgeConfig,
}
# Example files for beginners: each key that they set is explained once.
EXAMPLES: dict[str, type[msgspec.Struct]] = {
    "examples/faults.toml": EmulationConfig,
    "examples/own_model.toml": EmulationConfig,
    "examples/phones.toml": EmulationConfig,
    "examples/own_model_run.toml": RunFile,
}


def made() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every generated file."""
    tables = [
        *FILES.items(),
        *((f'strategy = "{name}"', kind) for name, kind in STRATEGIES.items()),
    ]
    yield REFERENCE, HEAD + "\n".join(reference(title, struct) for title, struct in tables)
    for path, struct in (COMPLETE | EXAMPLES).items():
        yield path, commented((ROOT / path).read_text(), struct, with_tables=path in COMPLETE)
