"""docs/models.md: two tables whose rows are measured one by one, and stay until they are measured again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME

# The model, and the backend or the seed.
Key: TypeAlias = tuple[str, str]
Lines: TypeAlias = dict[Key, str]

_SEEDS = "\n## The deep networks on several seeds\n"
_HEAD = """\
# Which models export

Written by `python -m tools.bench models`, which exports every model of `tools/bench/zoo` in batches of
{batch} and verifies its programs against eager torch in float64: {verified}. An error is the largest
difference of a gradient in an epoch of four steps, as a share of the largest gradient; torch's is that of
eager torch in float32 on the same batches. A replaced batch is one with a proven kink (see
`tools/export/sedge_export/verification`). The step's ratio is its CPU time over that of the same step in
eager torch, both on one thread; memory is what a process needs for the step beside the runtime's libraries.

| model | backend | kind | verified | error | torch's | batches replaced | export s | step / eager | MB |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
_SEEDS_HEAD = """
Written by `python -m tools.bench models --seeds 5`: the networks that an absolute tolerance against float32
refused, each with the initial values and the random rows of a seed. The trainers are the emulator's, which
pass the checks of `tools/emulate/sedge_emulate/training/checks.py` or not: steps against plain torch in
float64, and the same bits in other groups.

| model | seed | exported | error | torch's | batches replaced | trainers, or why not |
| --- | --- | --- | --- | --- | --- | --- |
"""


def read(path: Path) -> tuple[Lines, Lines]:
    """The lines of both tables; none where there is no page."""
    models, _, seeds = (path.read_text() if path.exists() else "").partition(_SEEDS)
    return _lines(models), _lines(seeds)


def write(path: Path, models: Lines, seeds: Lines, order: Sequence[str], batch_size: int) -> None:
    """The whole page; ``order`` has the models' names."""
    counts: list[str] = []
    for backend in (ONNXRUNTIME, EXECUTORCH):
        of = [line for key, line in models.items() if key[1] == backend]
        if of:
            passed = sum("| yes |" in line for line in of)
            counts.append(f"{passed} of {len(of)} pass for {backend}")
    head = _HEAD.format(batch=batch_size, verified=", ".join(counts))
    by_backend = sorted(_ordered(models, order), key=lambda key: key[1] == EXECUTORCH)
    text = head + "".join(f"{models[key]}\n" for key in by_backend)
    if seeds:
        text += _SEEDS + _SEEDS_HEAD
        text += "".join(f"{seeds[key]}\n" for key in _ordered(seeds, order))
    path.write_text(text)


def line(key: Key, cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join([*key, *(cell.replace('|', chr(92) + '|') for cell in cells)])} |"


def _lines(text: str) -> Lines:
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    found: Lines = {}
    for row in rows:
        name, second, _ = row.removeprefix("| ").split(" | ", 2)
        found[name, second] = row
    return found


def _ordered(lines: Mapping[Key, str], order: Sequence[str]) -> list[Key]:
    return sorted(lines, key=lambda key: (order.index(key[0]), key[1]))
