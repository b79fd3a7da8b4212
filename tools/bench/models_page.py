"""Writes docs/models.md. Each row stays until its model is measured again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tools.bench.zoo import CASES
from tools.bench.zoo.case import Case
from tools.bench.zoo.published import PACKAGES, PUBLISHED

from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME

# The key of a row: the model, and the backend or the seed.
Key: TypeAlias = tuple[str, str]
Lines: TypeAlias = dict[Key, str]

_SEEDS = "\n## The deep networks on several seeds\n"
_HEAD = """\
# Which models export

{counts}

Written by `python -m tools.bench models`, which exports every model of `tools/bench/zoo` in batches of
{batch} and verifies its programs against eager torch in float64; with `--published`, it also exports the
models from public packages. The columns:

- *error* is the largest difference of a gradient in an epoch of four steps, as a share of the largest
  gradient; *torch's* is the same error of eager torch in float32 on the same batches;
- *batches replaced* counts batches with a proven kink (see `tools/export/sedge_export/verification`);
- *step / eager* is the CPU time of a step over that of the same step in eager torch, both on one thread;
- *MB* is the memory that the step needs in a process, without the runtime's libraries.

The public packages are {packages}.
"""
_COLUMNS = (
    "model", "backend", "parameters", "verified", "error", "torch's", "batches replaced", "export s",
    "step / eager", "MB",
)  # fmt: skip
_GROUP = f"""
## {{title}}

| {" | ".join(_COLUMNS)} |
{"| --- " * len(_COLUMNS)}|
"""
_SEEDS_HEAD = """
Written by `python -m tools.bench models --seeds 5`: the networks that an absolute tolerance against float32
rejected, each with the initial values and the random rows of a seed. The last column lists the
emulator's trainers that pass the checks of `tools/emulate/sedge_emulate/training/checks.py` (steps against
plain torch in float64, and bit-identical results in other groups), or says why one does not.

| model | seed | exported | error | torch's | batches replaced | trainers, or why not |
| --- | --- | --- | --- | --- | --- | --- |
"""


def read(path: Path) -> tuple[Lines, Lines]:
    """Return the rows of both tables, which are empty if the page does not exist."""
    models, _, seeds = (path.read_text() if path.exists() else "").partition(_SEEDS)
    return _lines(models), _lines(seeds)


def write(
    path: Path, models: Lines, seeds: Lines, cases: Mapping[str, Case], batch_size: int
) -> None:
    """Write the page. ``cases`` lists the models in the page's order."""
    counts = (
        f"Of the models written for this page, {_counts(models, CASES)} export. "
        f"Of the models from public packages, {_counts(models, PUBLISHED)} export."
    )
    text = _HEAD.format(
        batch=batch_size, counts=counts, packages=", ".join(PACKAGES).replace("==", " ")
    )
    lines = _ordered(models, list(cases))
    for group in dict.fromkeys(case.kind for case in cases.values()):
        rows = [models[key] for key in lines if cases[key[0]].kind == group]
        text += _GROUP.format(title=group.capitalize()) + "".join(f"{row}\n" for row in rows)
    if seeds:
        text += _SEEDS + _SEEDS_HEAD
        text += "".join(f"{seeds[key]}\n" for key in _ordered(seeds, list(cases)))
    path.write_text(text)


def _counts(models: Lines, cases: Mapping[str, Case]) -> str:
    """Describe how many of these models export, by backend."""
    counts: list[str] = []
    for backend in (ONNXRUNTIME, EXECUTORCH):
        of = [line for key, line in models.items() if key[1] == backend and key[0] in cases]
        if of:
            passed = sum("| yes |" in line for line in of)
            share = f"all {len(of)}" if passed == len(of) else f"{passed} of {len(of)}"
            counts.append(f"{share} that were tried with {backend}")
    return " and ".join(counts) or "none"


def line(key: Key, cells: Sequence[str]) -> str:
    """Format a row of a table."""
    return f"| {' | '.join([*key, *(cell.replace('|', chr(92) + '|') for cell in cells)])} |"


def _lines(text: str) -> Lines:
    heads = ("| model |", "| ---")
    rows = [
        line for line in text.splitlines() if line.startswith("| ") and not line.startswith(heads)
    ]
    found: Lines = {}
    for row in rows:
        name, second, _ = row.removeprefix("| ").split(" | ", 2)
        found[name, second] = row
    return found


def _ordered(lines: Mapping[Key, str], order: Sequence[str]) -> list[Key]:
    return sorted(lines, key=lambda key: (order.index(key[0]), key[1]))
