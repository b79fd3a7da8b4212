"""Runs any benchmark.

    python -m tools.bench --list
    python -m tools.bench NAME [options]         --help lists the options
    python -m tools.bench --keep NAME [options]  keeps the result below tools/bench/results
    python -m tools.bench --all                  runs and keeps all benchmarks, and writes the pages

A benchmark's last line of output is JSON. The exit status is 1 if a target is missed.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from tools.bench.harness import PAGE, RESULTS, benchmark

HERE = Path(__file__).parent
# The benchmarks whose results the pages need: these two, and the ones in RESULTS.md except the GPU
# benchmark, which has its own command.
KEPT = ("machine", "fleet_costs", *(name for name in PAGE if name != "gpu"))


def main(words: Sequence[str]) -> int:
    """Run the command. Returns its exit status."""
    known = commands()
    match words:
        case ["--list"]:
            for name, module in known.items():
                print(f"{name:<18}{summary(module)}")
            return 0
        case ["--all"]:
            return max([*(keep(name) for name in KEPT), run("pages")])
        case ["--keep", name, *options] if name in known:
            return keep(name, *options)
        case [name, *options] if name in known:
            return run(name, *options)
        case _:
            asked = words in (["-h"], ["--help"])
            print(__doc__, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2


def commands() -> dict[str, Path]:
    """Return every module that has a benchmark or a command line of its own, keyed by name."""
    found: dict[str, Path] = {}
    for path in sorted([*HERE.glob("*.py"), *HERE.glob("*/__main__.py")]):
        if path != HERE / "__main__.py":
            text = path.read_text()
            if "\n@bench(" in text or "\ndef main(" in text:
                found[path.parent.name if path.stem == "__main__" else path.stem] = path
    return found


def summary(module: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]


def run(name: str, *options: str) -> int:
    """Run a benchmark in this process. Returns its exit status."""
    sys.argv = [f"python -m tools.bench {name}", *options]
    if commands()[name].stem == "__main__":
        return int(import_module(f"tools.bench.{name}.__main__").main() or 0)
    found = benchmark(name)
    return found.run(options) if found else int(import_module(f"tools.bench.{name}").main() or 0)


def keep(name: str, *options: str) -> int:
    """Run a benchmark in a separate process, and save its line of JSON. Returns its exit status."""
    command = [sys.executable, "-m", "tools.bench", name, *options]
    line = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
    try:
        json.loads(line)
    except ValueError:
        print(f"{name}: no result, exit status {process.returncode}", file=sys.stderr)
        return process.returncode or 1
    (RESULTS / f"{name}.json").write_text(line)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
