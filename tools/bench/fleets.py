"""Runs emulated fleets for benchmarks. Each has its own folder, and a finished one is not repeated."""

import sys
from pathlib import Path

from sedge_emulate.__main__ import main as emulate
from sedge_emulate.result import Result, read_json


def emulated(fleet: Path | str, folder: Path, **options: int) -> Result:
    """Run a fleet, given as a file or its text, in ``folder``, unless it is finished. Returns its result.

    Exits if the run fails.
    """
    if not (folder / "result.json").exists():
        if isinstance(fleet, Path):
            path = fleet  # not copied, because its model's module is next to it
        else:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "fleet.toml"
            path.write_text(fleet)
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        if status := emulate(["run", str(path), *words, "--out", str(folder), "--fresh"]):
            sys.exit(status)
    return read_json(folder / "result.json")
