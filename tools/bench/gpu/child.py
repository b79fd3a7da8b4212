"""Runs a stage in its own process: ``python -m tools.bench.gpu.child MODULE:FUNCTION SETTINGS``.

Its standard output has one line with the settings of all cells, then one line per cell with its row. All
other output, including that of torch and of child processes, goes to standard error. Exit status 2 means
that nothing can be measured on this machine.
"""

import gc
import os
import sys
from importlib import import_module
from typing import BinaryIO

import msgspec
from tools.bench.gpu.cells import Cell, Missing, Row, Settings, Unusable


def main(argv: list[str]) -> int:
    """Measure the cells of a stage."""
    where, encoded = argv
    settings = msgspec.json.decode(encoded, type=Settings)
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)
        module, _, function = where.partition(":")
        try:
            cells: list[Cell] = getattr(import_module(module), function)(settings)
            _write(out, [cell.setting for cell in cells])
            for cell in cells:
                _write(out, measured(cell, settings))
        except Unusable as exc:
            print(exc, file=sys.stderr)
            return 2
    return 0


def measured(cell: Cell, settings: Settings) -> Row:
    """Measure a cell, unless no time is left, and return its row.

    Only ``Unusable`` is raised. The row reports any other error, because the next cell may still succeed,
    for example if it needs less memory.
    """
    if settings.left() <= 0:
        return Row(cell.setting, why="no time left")
    try:
        return Row(cell.setting, cell.measure())
    except Unusable:
        raise
    except Missing as exc:
        return Row(cell.setting, exc.figures, str(exc))
    except Exception as exc:
        first, *_ = str(exc).splitlines() or [""]
        return Row(cell.setting, why=f"{type(exc).__name__}: {first}")
    finally:
        _release()


def _release() -> None:
    """Free the GPU's memory before the next cell."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _write(out: BinaryIO, found: object) -> None:
    out.write(msgspec.json.encode(found) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
